#include "tests/policies/fake_fleet.h"

namespace kvlab {
namespace {

TEST(Splitwise, EveryMachineMustTakeBothStages) { EXPECT_TRUE(make_dispatcher("splitwise")->changes_roles()); }

TEST(Splitwise, ChoosesThePairAtArrival) {
  AskedFleet f({2, 2}, "splitwise");
  f.fleet.loads[0].outstanding_tokens = 500;
  f.fleet.loads[1].outstanding_tokens = 300;
  f.fleet.loads[2].used_blocks = 30;
  f.fleet.loads[3].used_blocks = 20;
  EXPECT_EQ(f.prefill(0), "1");
  f.fleet.loads[3].used_blocks = 90;
  EXPECT_EQ(f.decode(0, 100, 1), "3");
}

// A token machine that has prompt tokens to compute is mixed: it takes further prompts before another token machine does.
TEST(Splitwise, TokenMachinesTakePromptsThatWouldWaitTooLong) {
  AskedFleet f({2, 2}, "splitwise", "{prompt_max_pending_tokens: 600}");
  f.fleet.loads[0].outstanding_tokens = f.fleet.loads[1].outstanding_tokens = 500;
  EXPECT_EQ(f.prefill(0), "0");  // 600
  f.fleet.loads[0].outstanding_tokens = f.fleet.loads[1].outstanding_tokens = 501;
  EXPECT_EQ(f.prefill(1), "whole 2");
  f.fleet.loads[2].outstanding_tokens = 100;
  EXPECT_EQ(f.prefill(2), "whole 2");
  f.fleet.loads[2].outstanding_tokens = 501;
  EXPECT_EQ(f.prefill(3), "whole 3");
  f.fleet.loads[2] = {0, 2, 0, 20, 100};  // its prompts are computed: a token machine again
  EXPECT_EQ(f.prefill(4), "whole 3");
}

TEST(Splitwise, EverybodyIsFullTheFewestPendingTokens) {
  AskedFleet f({1, 1}, "splitwise", "{prompt_max_pending_tokens: 600}");
  f.fleet.loads[0].outstanding_tokens = 800;
  f.fleet.loads[1].outstanding_tokens = 700;
  EXPECT_EQ(f.prefill(0), "whole 1");
  f.fleet.loads[1].outstanding_tokens = 900;
  EXPECT_EQ(f.prefill(1), "0");
}

TEST(Splitwise, AnIdlePromptMachineTakesAnyPrompt) {
  const FakeFleet fleet(1, 1);
  EXPECT_EQ(ask_prefill(*make_dispatcher("splitwise", "{prompt_max_pending_tokens: 600}"), fleet, 0, 700), "0");
}

// 100 prompt and 100 predicted output tokens are 20 blocks: memory must stay below the cap.
TEST(Splitwise, WithoutATokenMachineThePromptMachineDecodes) {
  AskedFleet f({2, 2}, "splitwise");
  f.fleet.predicted = 100;
  f.fleet.loads[2].used_blocks = 80;
  f.fleet.loads[3].used_blocks = 85;
  EXPECT_EQ(f.prefill(0), "whole 0");
  f.fleet.loads[1].outstanding_tokens = 50;
  EXPECT_EQ(f.prefill(1), "1");  // machine 0 is mixed now, and so comes after the prompt machines
  EXPECT_EQ(f.decode(1, 100, 1), "0");
  leave(*f.dispatcher, 0);
  EXPECT_EQ(f.prefill(2), "1");  // still mixed: it decodes request 1
  leave(*f.dispatcher, 1);
  leave(*f.dispatcher, 2);
  EXPECT_EQ(f.prefill(3), "whole 0");  // a prompt machine again
  f.fleet.loads[2].used_blocks = 79;
  EXPECT_EQ(f.prefill(4), "1");
  EXPECT_EQ(f.decode(4, 100, 1), "2");
}

// Machine 1 computes a preempted request again and was sent no prompt. A mixed machine would take the new one before any token machine.
TEST(Splitwise, RecomputationLeavesATokenMachineInItsPool) {
  AskedFleet f({1, 2}, "splitwise", "{prompt_max_pending_tokens: 600}");
  f.fleet.loads[0].outstanding_tokens = 550;
  f.fleet.loads[1].outstanding_tokens = 100;
  EXPECT_EQ(f.prefill(0), "whole 2");
}

// 100 prompt and 300 predicted output tokens are 40 blocks, which a token machine is bound to keep from the arrival until the request
// leaves, after one token or all.
TEST(Splitwise, ReservesFullLengthsUntilRequestsLeave) {
  AskedFleet f({1, 2}, "splitwise");
  f.fleet.predicted = 300;
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(f.prefill(i), "0");
    EXPECT_EQ(f.decode(i), i % 2 == 0 ? "1" : "2");
  }
  EXPECT_EQ(f.prefill(4), "whole 0");
  leave(*f.dispatcher, 3);
  EXPECT_EQ(f.prefill(5), "0");
  EXPECT_EQ(f.decode(5), "2");
  EXPECT_EQ(ask_prefill(*make_dispatcher("splitwise", "{token_memory_cap_frac: 0.3}"), f.fleet, 0), "whole 0");
}

}  // namespace
}  // namespace kvlab
