// skip_decode, unified_skip and first_skip: layers taken out of another scheduler's plans. The model has 8 layers.
#include <set>

#include "tests/error_of.h"
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

std::string error_with(const std::string& scheduler, const std::string& params) {
  return error_of([&] { ReplicaDriver::make<Scheduler>(scheduler, params); });
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

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

TEST(SkipDecodeScheduler, RefusesLayersThatTheModelLacks) {
  EXPECT_TRUE(has(error_with("skip_decode", "{least_layers: 9, over_tokens: 4}"), "above the 8 layers of the model: give at most 8"));
  EXPECT_TRUE(has(error_with("skip_decode", "{least_layers: 4, most_layers: 9, over_tokens: 4}"), "'most_layers' = 9"));
  EXPECT_TRUE(has(error_with("skip_decode", "{least_layers: 6, most_layers: 5, over_tokens: 4}"), "only fall"));
  EXPECT_TRUE(has(error_with("skip_decode", "{least_layers: 2, over_tokens: 4, warmup_layers: 3}"), "above 'least_layers'"));
  EXPECT_TRUE(has(error_with("skip_decode", "{least_layers: 2, over_tokens: 4, batching: layered_prefill}"), "plans whole steps"));
  EXPECT_TRUE(has(error_with("skip_decode", "{least_layers: 2, over_tokens: 4, batching: {sarathi: {budget: 4}}}"), "unknown key"));
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
  EXPECT_TRUE(has(error_with("unified_skip", "{speedup: 6}"), "give at most 4"));
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

}  // namespace
}  // namespace kvlab
