#include "tests/error_of.h"
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

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
  RequestFacts urgent, other;
  urgent.priority = 0;
  other.priority = 5;
  d.with(urgent).arrive(7, 4);
  d.with(urgent).arrive(7, 4);
  EXPECT_EQ(d.step(), "0:7 1:7");
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

TEST(LayeredPrefillScheduler, NeedsAModelWithAsManyLayersAsStages) {
  const auto error_with = [](const std::string& params, std::int64_t layers) {
    return error_of([&] { ReplicaDriver::make<Scheduler>("layered_prefill", params, layers); });
  };
  EXPECT_NE(error_with("{stages: 16}", 8).find("'stages' = 16 is above the 8 layers of the model: give at most 8"), std::string::npos);
  EXPECT_EQ(error_with("{}", 8), "no error");
  EXPECT_NE(error_with("{}", 0).find("runs in an experiment that names a 'model'"), std::string::npos);
  EXPECT_NE(error_with("{}", 300).find("at most 256"), std::string::npos);
}

}  // namespace
}  // namespace kvlab
