#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(VllmV0Scheduler, Scripts) {
  const Scripts run{"vllm_v0"};
  // Card 1.3: a step prefills or decodes, prompts first, so request 0 stalls for the whole prefill of requests 1 and 2.
  run("PrefillStepsStallDecodes", "{}", {}, {"+ 5,3", "0:5", "0:1", "+ 6,2 7,1", "1:6 2:7", "0:1 1:1", ""});
  // The longest decides also when it comes last: 2 + 2 counts 4, then 3 x 5 = 15 > 14.
  run("PaddedCountingLooksAtTheLongestSoFar", "{budget_tokens: 14, budget_counting: padded}", {}, {"+ 2,1 2,1 5,1", "0:2 1:2"});
  // max(2048, max_model_len) where no budget is given.
  run("DefaultBudgetFollowsTheModelLength", "{}", {.max_model_len = 3000}, {"+ 2000,1 1000,1 1,1", "0:2000 1:1000"});
  // The request that finds no block may be the latest itself: requests 0 and 1 keep theirs, request 1 goes. 3 blocks: request 0
  // holds 2 (5 of 8 tokens), request 1 holds 1 full block.
  run("ARequestMayPreemptItself", "{}", {.num_blocks = 3}, {"+ 5,4 4,2", "0:5 1:4", "0:1; waiting 1; running 0"});
  // A swap-in leaves the watermark (2 of 20 blocks) over the request's blocks and one more. Request 2 is swapped out with 5 of
  // them; when request 1 is done 7 are free, which leaves 1: it waits for request 0.
  run("SwapInKeepsTheWatermark", "{preemption: swap, watermark_frac: 0.1}", {.num_blocks = 20, .host_blocks = 10},
      {"+ 44,9 4,7 16,9", "0:44 1:4 2:16", "0:1 1:1 2:1 *4", "0:1 1:1 *2; running 0; free 7", "0:1; copies_in 0", "0:1; running none",
       "; copies_in 1"});
  // Two swapped requests come back in order of arrival. 6 blocks hold three prompts of 8; the decode of request 0 swaps out
  // request 2, and its 2 blocks serve requests 0 and 1; four steps later both need another, and request 1 follows.
  run("SwapsInFirstComeFirstServed", "{preemption: swap}", {.num_blocks = 6, .host_blocks = 10},
      {"+ 8,7 8,9 8,2", "0:8 1:8 2:8", "0:1 1:1 *4", "0:1; waiting 1 2", "0:1",  // the last of request 0
       "; copies_in 1; waiting 1 2",  // both copies start: 4 + 3 blocks are needed, so only request 1's
       "copied in", "1:1; waiting 2"});
  // 4 blocks of 4 tokens, three requests with full blocks of prompt (4, 4, 8 tokens). The decode step has no free block: for request 0 the
  // latest arrival, 2, is preempted (2 blocks return), requests 0 and 1 take one each. Request 2 is at the head of the queue with c = 0,
  // and comes back with 8 + 1 known tokens when request 0 and 1 are done.
  run("PreemptsTheLatestArrivalByRecompute", "{}", {.num_blocks = 4},
      {"+ 4,2 4,2 8,3", "0:4 1:4 2:8; free 0", "+ 4,1", "0:1 1:1; waiting 2 3",
       "2:9 3:4; recomputed 8",  // 3 blocks and 1 block
       "2:1; left 4"});
  // While a copy is under way the next plan may differ without any step having ended.
  run("NotStableWhileACopyIsUnderWay", "{preemption: swap}", {.num_blocks = 6, .host_blocks = 10},
      {
          "+ 5,9 8,2 8,9", "0:5 1:8 2:8", "0:1 1:1",  // request 2 goes; request 1 is done
          "0:1; copies_in 1; unstable"                // 4 blocks free, 3 needed: the copy back starts
      });
}

// Prompts 6, 2, 2 with a budget of 10: their sum is exactly 10; 2 x 6 = 12 padded tokens are too many for two of them.
TEST(VllmV0Scheduler, BudgetCountings) {
  for (const auto& [counting, step] : {std::pair{"sum", "0:6 1:2 2:2"}, {"padded", "0:6"}}) {
    ReplicaDriver d("vllm_v0", std::string("{budget_tokens: 10, budget_counting: ") + counting + "}");
    EXPECT_TRUE(d.steps_are({"+ 6,1 2,1 2,1", step})) << counting;
  }
}

TEST(VllmV0Scheduler, PromptBeyondTheBudgetIsRejected) {
  ReplicaDriver d("vllm_v0", "{budget_tokens: 10}");
  EXPECT_TRUE(d.steps_are({"+ 11,1 10,1", "1:10"}));
  EXPECT_NE(d.rejection().find("budget_tokens"), std::string::npos);
}

// It waits until it is the first of its step, and no request joins it, whichever way tokens are counted.
TEST(VllmV0Scheduler, ALonePromptPassesTheBudget) {
  for (const std::string counting : {"sum", "padded"}) {
    ReplicaDriver d("vllm_v0", "{budget_tokens: 10, lone_prompt: true, budget_counting: " + counting + "}");
    EXPECT_TRUE(d.steps_are({"+ 4,1 11,1 1,1", "0:4", "1:11", "2:1"}));
    EXPECT_EQ(std::tuple(d.rejection(), d.scheduler().step_bounds(1000).tokens), std::tuple("", 1000));
    EXPECT_EQ(d.scheduler().step_bounds(8).tokens, 10);
  }
}

// 20 blocks, watermark 10 % = 2 blocks. Request 0 takes 9 (11 left); request 1 of 9 blocks leaves exactly 2: admitted.
// With 10 blocks it would leave 1: not admitted, and as nothing else was, the step decodes.
TEST(VllmV0Scheduler, AdmissionKeepsTheWatermark) {
  for (const auto& [arrival, step] : {std::pair{"+ 36,1", "1:36"}, {"+ 37,1", "0:1"}}) {
    ReplicaDriver d("vllm_v0", "{watermark_frac: 0.1}", Memory{.num_blocks = 20});
    EXPECT_TRUE(d.steps_are({"+ 33,3", "0:33", arrival, step})) << arrival;
  }
}

// Swap: request 1 goes to host memory with its 2 blocks. While it is there no new prompt enters (request 2 would fit), though
// its copy is under way; it comes back with room for its next token when request 0 is done, and decodes from where it was.
TEST(VllmV0Scheduler, SwappedRequestsBlockNewPrompts) {
  ReplicaDriver d("vllm_v0", "{preemption: swap}", Memory{.num_blocks = 5, .host_blocks = 10});
  ASSERT_TRUE(
      d.steps_are({"+ 12,3 8,3", "0:12 1:8", "+ 1,1", "0:1; copies_out 1"}));  // preempts 1; a swap-in is not tried in the same step
  EXPECT_EQ(std::tuple(d.copies_out()[0].blocks, d.free_blocks()), std::tuple(2, 1));
  ASSERT_TRUE(d.steps_are({"0:1; stable",            // 3 blocks needed for 8 + 1 tokens, 1 free
                           "; copies_in 1; free 2",  // request 0 is done, the copy back starts
                           "",                       // still copying: request 2 waits
                           "copied in", "2:1",       // request 1 runs again, and prompts come before decodes
                           "1:1", "1:1; left 3; recomputed 0"}));
}

// Request 0 has been handed over with its 3 blocks; request 1 needs a third block for its next token and swaps itself out. Request 0
// comes back with its blocks, as one from another replica does, and continues: request 1 waits for memory that only it gives back.
TEST(VllmV0Scheduler, RequestsWithBlocksDoNotWaitForSwappedOnes) {
  ReplicaDriver d("vllm_v0", "{preemption: swap}", Memory{.num_blocks = 5, .host_blocks = 10});
  d.arrive(12, 3, {}, true);
  EXPECT_TRUE(d.steps_are({"+ 8,3", "0:12 1:8", "; copies_out 1"}));
  ASSERT_EQ(d.state().transits().all().size(), 1U);
  d.state().rejoin(RequestId{d.state().transits().all().begin()->first}, kStart);
  EXPECT_TRUE(d.steps_are({"0:1", "0:1", "", "copied in", "1:1", "1:1; left 2"}));
}

// Alone it comes back whatever it leaves free: with its 10 blocks and one more there are 9 left of a watermark of 10.
TEST(VllmV0Scheduler, AloneARequestIsSwappedInBelowTheWatermark) {
  ReplicaDriver d("vllm_v0", "{preemption: swap, watermark_frac: 0.5}", Memory{.num_blocks = 20, .host_blocks = 10});
  d.arrive_all({{20, 30}, {20, 25}});
  for (int i = 0; i < 100 && d.left().size() < 2; ++i) {
    d.step();
    d.finish_copies();
  }
  EXPECT_EQ(std::tuple(d.left().size(), d.state().counters().swaps), std::tuple(2U, 1U));
}

// With no room in host memory a swap becomes a recompute, and is counted.
TEST(VllmV0Scheduler, FullHostMemoryFallsBackToRecompute) {
  ReplicaDriver d("vllm_v0", "{preemption: swap}", Memory{.num_blocks = 3, .host_blocks = 0});
  EXPECT_TRUE(d.steps_are({"+ 5,4 4,2", "?", "0:1"}));
  EXPECT_EQ(d.state().counters().recompute_fallbacks, 1U);
  EXPECT_EQ(d.step(), "0:1");
}

}  // namespace
}  // namespace kvlab
