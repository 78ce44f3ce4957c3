// skip_decode, unified_skip and first_skip: layers taken out of another scheduler's plans. The model has 8 layers.
#include <set>

#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

// "0 2 5 7": the layers that entry number `at` of the last step passes.
std::string layers_of(const ReplicaDriver& d, std::size_t at) {
  const InFlightStep& step = d.last_step();
  const std::int32_t set = step.entries[at].layer_set;
  std::string text;
  for (std::size_t l = 0; l < 8; ++l)
    if (set == 0 || step.layer_sets[static_cast<std::size_t>(set) - 1][l]) text += (text.empty() ? "" : " ") + std::to_string(l);
  return text;
}

// D(t) = 8 - 4 min(t, 4) / 4 for the token at output position t; the prompt passes all layers.
TEST(SkipDecodeScheduler, LayersFallWithTheOutputPosition) {
  ReplicaDriver d("skip_decode", "{least_layers: 4, over_tokens: 4, batching: sarathi}");
  EXPECT_TRUE(d.steps_are({"+ 3,7", "0:3", "0:1", "0:1{7}", "0:1{6}", "0:1{5}", "0:1{4}", "0:1{4}; left 1; unstable"}));
}

// Card 14.1: the bottom layer and the top ones run, and a layer that runs ran at every position before, so its KV is complete.
TEST(SkipDecodeScheduler, EveryLayerThatRunsRanBefore) {
  ReplicaDriver d("skip_decode", "{least_layers: 3, over_tokens: 5, warmup_layers: 2, batching: sarathi}");
  EXPECT_TRUE(d.steps_are({"+ 3,9", "0:3"}));
  LayerSet before = LayerSet{}.set();
  for (int t = 0; t < 8; ++t) {
    d.step();
    const InFlightStep& step = d.last_step();
    const LayerSet now = step.layer_sets.empty() ? LayerSet{0xFF} : step.layer_sets[0];
    EXPECT_TRUE((now & ~before).none()) << t;
    before = now;
  }
  EXPECT_EQ(layers_of(d, 0), "0 1 7");
}

// Rows at different positions are in one step, each with its own layers; rows at one position share a set.
TEST(SkipDecodeScheduler, RowsAtOnePositionShareTheirLayers) {
  ReplicaDriver d("skip_decode", "{least_layers: 4, over_tokens: 2, batching: {sarathi: {budget_tokens: 64}}}");
  EXPECT_TRUE(d.steps_are({"+ 3,5 9,5", "0:3 1:9", "+ 4,5", "0:1 1:1 2:4", "0:1{6} 1:1{6} 2:1"}));
  EXPECT_EQ(d.last_step().layer_sets.size(), 1U);
  EXPECT_EQ(d.step(), "0:1{4} 1:1{4} 2:1{6}");
}

TEST(SkipDecodeScheduler, PromptsPassTheMostLayers) {
  ReplicaDriver d("skip_decode", "{least_layers: 4, most_layers: 6, over_tokens: 10, batching: sarathi}");
  EXPECT_TRUE(d.steps_are({"+ 3,2", "0:3{6}"}));
  EXPECT_EQ(layers_of(d, 0), "0 3 4 5 6 7");
  EXPECT_EQ(d.step(), "0:1{6}");
}

// vllm_v1 plans a step while the one before computes: positions count tokens in flight.
TEST(SkipDecodeScheduler, PositionsCountTokensInFlight) {
  ReplicaDriver d("skip_decode", "{least_layers: 4, over_tokens: 4}");
  EXPECT_EQ(d.scheduler().pipeline_depth(), 2);
  EXPECT_TRUE(d.steps_are({"+ 3,5", "plan 0:3", "plan 0:1", "plan 0:1{7}"}));
}

// The limits of an engine's defaults reach the scheduler that is built upon.
TEST(LayerSkip, TheInnerSchedulerHasTheEnginesDefaults) {
  Params p = Params::from_text("{speedup: 2}");
  prefer_engine_defaults("unified_skip", {.has_large_gpu = false, .overlaps = false, .model_layers = 8}, p);
  const auto scheduler = SchedulerRegistry::make("unified_skip", p, "scheduler");
  EXPECT_EQ(std::tuple(scheduler->step_bounds(1000).tokens, scheduler->pipeline_depth()), std::tuple(2048, 1));
}

// SGLang's defaults depend on the GPU's memory, and on tp: 80 rows with 24 GiB and 4 ranks.
TEST(LayerSkip, TheInnerSchedulerKnowsTheGpu) {
  Params p = Params::from_text("{skip_frac: 0.5, batching: sglang}");
  prefer_engine_defaults("first_skip", {.model_layers = 8, .gpu_bytes = std::int64_t{24} << 30, .tp = 4}, p);
  EXPECT_EQ(SchedulerRegistry::make("first_skip", p, "scheduler")->largest_graph_tokens(), 80);
}

TEST(LayerSkip, SaysWhatTheInnerSchedulerSays) {
  const auto over = [](const std::string& batching) {
    return ReplicaDriver::make<Scheduler>("first_skip", "{skip_frac: 0.5, batching: " + batching + "}");
  };
  EXPECT_TRUE(over("s3")->uses_predictor());
  EXPECT_TRUE(over("static")->pads_batches());
  EXPECT_FALSE(over("vllm_v1")->uses_predictor());
  EXPECT_FALSE(over("vllm_v1")->pads_batches());
}

// 8 / 2 = 4 layers at i * 7 / 3, rounded; prompts and outputs alike.
TEST(UnifiedSkipScheduler, KeepsEvenlySpreadLayersForEveryToken) {
  ReplicaDriver d("unified_skip", "{speedup: 2, batching: sarathi}");
  EXPECT_TRUE(d.steps_are({"+ 5,3", "0:5{4}"}));
  EXPECT_EQ(layers_of(d, 0), "0 2 5 7");
  EXPECT_TRUE(d.steps_are({"+ 2,1", "0:1{4} 1:2{4}"}));
  EXPECT_EQ(d.last_step().layer_sets.size(), 1U);
  EXPECT_EQ(layers_of(d, 0), "0 2 5 7");
}

TEST(UnifiedSkipScheduler, KeepsTheFirstAndTheLastAtLeast) {
  ReplicaDriver d("unified_skip", "{speedup: 4, batching: sarathi}");
  EXPECT_TRUE(d.steps_are({"+ 5,1", "0:5{2}"}));
  EXPECT_EQ(layers_of(d, 0), "0 7");
  ReplicaDriver all("unified_skip", "{speedup: 1, batching: sarathi}");
  EXPECT_TRUE(all.steps_are({"+ 5,1", "0:5"}));
}

// Decided at the prompt: the same layers at every position of a request, others for another one. Prompts pass all layers.
TEST(FirstSkipScheduler, EachRequestHasLayersOfItsOwn) {
  ReplicaDriver d("first_skip", "{skip_frac: 0.5, batching: sarathi}");
  EXPECT_TRUE(d.steps_are({"+ 5,4 5,4 5,4 5,4", "0:5 1:5 2:5 3:5", "?"}));
  std::vector<std::string> first;
  for (std::size_t i = 0; i < 4; ++i) first.push_back(layers_of(d, i));
  EXPECT_FALSE(first[0] == first[1] && first[1] == first[2] && first[2] == first[3]);
  d.step();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(layers_of(d, i), first[i]);
}

// 400 requests x 8 layers: a standard deviation of sqrt(0.25 x 0.75 / 3200) = 0.008.
TEST(FirstSkipScheduler, TheMeanShareIsTheStatedOne) {
  ReplicaDriver d("first_skip", "{skip_frac: 0.25, batching: {vllm_v1: {async_scheduling: false}}}", Memory{.num_blocks = 2000});
  for (int i = 0; i < 400; ++i) d.arrive(4, 3);
  d.step();
  d.step();
  std::size_t passed = 0;
  for (const StepEntry& entry : d.last_step().entries)
    passed += entry.layer_set == 0 ? 8 : d.last_step().layer_sets[static_cast<std::size_t>(entry.layer_set) - 1].count();
  ASSERT_EQ(d.last_step().entries.size(), 400U);
  EXPECT_NEAR(static_cast<double>(passed) / 3200, 0.75, 0.04);
}

// A slot that a request left is another's: its layers are drawn anew.
TEST(FirstSkipScheduler, LayersLeaveWithTheRequest) {
  ReplicaDriver d("first_skip", "{skip_frac: 0.5, batching: sarathi}");
  std::vector<std::string> layers;
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(d.steps_are({"+ 5,2", "?", "?"}));
    layers.push_back(layers_of(d, 0));
  }
  EXPECT_GT(std::set<std::string>(layers.begin(), layers.end()).size(), 1U);
}

const Memory kLarge{.num_blocks = 4000, .max_model_len = 10'000};

std::vector<std::uint64_t> content_of(std::size_t blocks) {
  std::vector<std::uint64_t> content(blocks);
  for (std::size_t i = 0; i < blocks; ++i) content[i] = 1000 + i;
  return content;
}

TEST(LayeredPrefillScheduler, Scripts) {
  const Scripts run{"layered_prefill"};
  // Card 1.8: a cohort of 600 tokens has 2 groups of layers, 4 of 8 layers each, and emits after the second. Request 1 comes while it is
  // under way and begins the next cohort; its steps also decode request 0 through all layers.
  run("ACohortPassesOneGroupOfLayersPerStep", "{stages: 4}", kLarge,
      {"+ 600,3", "0:600[0-4]; output_tokens 0; prompt_tokens 0", "+ 700,1",
       "0:600[4-]; output_tokens 1; prompt_tokens 600",  // once, though it was in two steps
       "0:1 1:700[0-4]", "0:1 1:700[4-]; left 2", ""});
  // A prompt above the budget is cut, and its rest is in the next cohorts. Its blocks are taken with the first: 25 tokens need 7 of 10.
  run("ALongPromptGoesOnInTheNextCohort", "{budget_tokens: 10}", {.num_blocks = 10},
      {"+ 25,2 3,1", "0:10; free 3", "0:10", "0:5 1:3", "0:1"});
  // 154 blocks of 4. Two decodes hold 2 blocks each, the cohort 150. In its second step both decodes need a third block: the tail decode
  // gives way, the cohort continues. The victim's 9 tokens, 3 blocks, fit once request 2 is done.
  run("TheTailDecodeGivesWayToOthersAndTheCohortGoesOn", "{}", {.num_blocks = 154},
      {"+ 7,10 7,10", "0:7 1:7", "+ 600,2", "0:1 1:1 2:600[0-4]; free 0", "0:1 2:600[4-]; waiting 1; free 1", "0:1 2:1",
       "0:1 1:9; preemptions 1"});
  run("AtMostMaxNumSeqs", "{max_num_seqs: 2}", {}, {"+ 4,3 4,3 4,3", "0:4 1:4", "0:1 1:1; stable", "0:1 1:1", "2:4"});
  run("NoStepIsStableWhileACohortIsUnderWay", "{}", kLarge, {"+ 4,9", "0:4", "0:1; stable", "+ 600,2", "0:1 1:600[0-4]; unstable"});
  // A policy that cuts the prompt acts when its last layers are done: the pages it took with the first group stay until then.
  run("PagesOfAPolicyAreHeldOverAllSteps", "{}", {.num_blocks = 160, .kept_tokens = 12},
      {"+ 600,2", "0:600[0-4]; free 7", "0:600[4-]; free 157", "0:1"});  // 160 - 150 - 3 and 160 - 3
}

std::int64_t steps_to_first_token(const std::string& params, std::int32_t tokens) {
  Memory memory = kLarge;
  memory.layers = 48;
  ReplicaDriver d("layered_prefill", params, memory);
  d.arrive(tokens, 1);
  std::int64_t steps = 0;
  while (d.left().empty() && steps < 100) {
    d.step();
    ++steps;
  }
  return steps;
}

// Card 1.8: TTFT is as many steps as there are groups: 1 up to 512 tokens, 2 up to 1024, 4 up to 2048, 8 (of 12 stages: 6) up to 4096, else
// all stages.
TEST(LayeredPrefillScheduler, GroupsFollowTheTokensOfTheCohort) {
  const std::int32_t tokens[] = {1, 512, 513, 1024, 1025, 2048, 2049, 4096, 4097, 8192};
  const std::int64_t of_16[] = {1, 1, 2, 2, 4, 4, 8, 8, 16, 16}, of_12[] = {1, 1, 2, 2, 4, 4, 6, 6, 12, 12};
  for (std::size_t i = 0; i < std::size(tokens); ++i) {
    EXPECT_EQ(steps_to_first_token("{}", tokens[i]), of_16[i]) << tokens[i];
    EXPECT_EQ(steps_to_first_token("{stages: 12}", tokens[i]), of_12[i]) << tokens[i];
  }
}

// 10 layers in 4 groups: the borders are 10 g / 4, rounded down.
TEST(LayeredPrefillScheduler, GroupsOfUnequalSizeCoverEveryLayerOnce) {
  Memory memory = kLarge;
  memory.layers = 10;
  ReplicaDriver d("layered_prefill", "{stages: 4}", memory);
  EXPECT_TRUE(d.steps_are({"+ 1500,1", "0:1500[0-2]", "0:1500[2-5]", "0:1500[5-7]", "0:1500[7-]"}));
}

// The memory of the case in which the tail decode gives way, and an order that names the cohort's member: the cohort ends there. Its blocks
// were never computed in all layers, so they are no hits, and the member begins again at the first layer.
TEST(LayeredPrefillScheduler, AMemberThatIsPreemptedLeavesNoHits) {
  ReplicaDriver d("layered_prefill", "{}", Memory{.num_blocks = 154, .prefix_caching = true, .order = "priority"});
  const std::vector<std::uint64_t> content = content_of(150);
  RequestFacts other;
  other.priority = 5;
  EXPECT_TRUE(d.steps_are({"+ 7,4p0 7,4p0", "0:7 1:7"}));
  d.with(other).arrive(600, 1, content);
  EXPECT_TRUE(d.steps_are({"0:1 1:1 2:600[0-4]", "0:1 1:1; waiting 2"}));
  EXPECT_EQ(d.cached_tokens(600, content), 0);
  EXPECT_TRUE(d.steps_are({"0:1 1:1", "2:600[0-4]", "2:600[4-]; left 3"}));
}

// A follower with the same 600 tokens may hit 149 blocks, once the last group of layers is planned.
TEST(LayeredPrefillScheduler, BlocksHaveHashesFromTheLastGroupOn) {
  ReplicaDriver d("layered_prefill", "{}", Memory{.num_blocks = 400, .prefix_caching = true});
  const std::vector<std::uint64_t> content = content_of(150);
  d.arrive(600, 2, content);
  EXPECT_TRUE(d.steps_are({"0:600[0-4]; free 250"}));  // held all the same
  EXPECT_EQ(d.cached_tokens(600, content), 0);
  EXPECT_EQ(d.step(), "0:600[4-]");
  EXPECT_EQ(d.cached_tokens(600, content), 596);
  d.arrive(600, 1, content);
  EXPECT_EQ(d.step(), "0:1 1:4");
}

// The model has 8 layers: with two loops, a block of 4.

// Card 14.4: a step runs the block once over all rows, whatever their loop; a waiting request begins at once.
TEST(DepthWiseScheduler, RowsInDifferentLoopsShareAStep) {
  ReplicaDriver d("depth_wise", "{loops: 2}");
  EXPECT_TRUE(d.steps_are({"+ 3,2", "0:3[0-4]"}));
  EXPECT_EQ(d.last_step().loop_layers, 4);
  EXPECT_TRUE(d.steps_are({"+ 2,1", "0:3[4-] 1:2[0-4]; output_tokens 1", "0:1[0-4] 1:2[4-]", "0:1[4-]; left 2; prompt_tokens 5"}));
}

TEST(DepthWiseScheduler, Scripts) {
  const Scripts run{"depth_wise"};
  // Without it a token begins only when no other is in a later loop.
  run("OrTheyWaitForTheFirstLoop", "{loops: 2, join: first_loop}", {},
      {"+ 3,2", "0:3[0-4]", "+ 2,1", "0:3[4-]", "0:1[0-4] 1:2[0-4]", "0:1[4-] 1:2[4-]"});
  // Prompts pass every loop.
  run("OutputTokensMayLeaveEarly", "{loops: 4, early_exit_frac: 1}", {},
      {"+ 3,3", "0:3[0-2]", "0:3[2-4]", "0:3[4-6]", "0:3[6-]", "0:1[0-2!", "0:1[0-2!; left 1"});
  // 4 blocks of 4 tokens. Request 1 needs a third block for its second token: it is preempted and begins again at the first loop when
  // request 0 is done.
  run("APreemptedRequestBeginsAtTheFirstLoop", "{loops: 2}", {.num_blocks = 4},
      {"+ 7,4 8,2", "0:7[0-4] 1:8[0-4]", "0:7[4-] 1:8[4-]", "0:1[0-4]", "0:1[4-]", "0:1[0-4]", "0:1[4-]", "0:1[0-4]", "0:1[4-]", "1:9[0-4]",
       "1:9[4-]", "; left 2"});
  run("APromptAboveTheBudgetBeginsAlone", "{loops: 2, budget_tokens: 10}", {},
      {"+ 8,1 12,1 3,1", "0:8[0-4]", "0:8[4-] 1:12[0-4]", "1:12[4-] 2:3[0-4]"});
}

// Half of the tokens leave after the first of two loops: 1.5 steps for a token. Two prompt steps, then 2000 tokens with a standard
// deviation of sqrt(2000 x 0.25) = 22 steps.
TEST(DepthWiseScheduler, TheShareThatLeavesIsTheStatedOne) {
  ReplicaDriver d("depth_wise", "{loops: 2, early_exit_frac: 0.5}", Memory{.max_model_len = 4000});
  d.arrive(3, 2001);
  int steps = 0;
  while (d.left().empty() && steps < 5000) {
    d.step();
    ++steps;
  }
  EXPECT_NEAR(steps, 2 + 3000, 110);
}

}  // namespace
}  // namespace kvlab
