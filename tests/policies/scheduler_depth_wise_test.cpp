// The model has 8 layers: with two loops, a block of 4.
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

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

TEST(DepthWiseScheduler, LoopsDivideTheLayers) {
  const std::string error = error_of([] { ReplicaDriver::make<Scheduler>("depth_wise", "{loops: 3}"); });
  EXPECT_THAT(error, HasSubstr("'loops' = 3 does not divide the 8 layers of the model into equal blocks: give one of 1, 2, 4, 8"));
}

}  // namespace
}  // namespace kvlab
