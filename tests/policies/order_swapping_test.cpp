// Orders that preempt and swap by levels, against sequences derived by hand. A step takes a millisecond, and blocks have 4 tokens.
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

Memory ordered(const char* order, const std::string& params, std::uint32_t num_blocks = 1000, std::int64_t host_blocks = 0) {
  return {.num_blocks = num_blocks, .host_blocks = host_blocks, .order = order, .order_params = params};
}

TEST(OrderScripts, WithSwapsRunAsByHand) {
  const Scripts run{"vllm_v1"};
  // Quanta of 2 and 4 ms. Request 0 has used 3 ms, more than the first, after step 3, and is at the second level from then on.
  run("MlfqOrder.DemotesAfterTheQuantum", kOneAtATime, ordered("mlfq", "{quantum_ms: 2, prefill_tokens_per_s: 1e9, preemption: recompute}"),
      {
          "+ 4,10", "0:4", "0:1", "+ 4,2", "0:1",  // same level: no preemption
          "1:4", "1:1", "0:7"                      // 4 prompt tokens and 3 of the output again
      });
  // Every step is longer than any quantum, so each request falls a level per step, down to the last of three. There no request overtakes,
  // and the two do not take turns for ever.
  run("MlfqOrder.QuantaBelowAStepEndInTheLastLevel", kOneAtATime,
      ordered("mlfq", "{quantum_ms: 0.1, levels: 3, prefill_tokens_per_s: 1e9, preemption: recompute}"),
      {"+ 4,10", "? *4", "+ 4,4", "1:4", "1:1 *3", "0:8; preemptions 1"});
  // A prompt of 400 tokens takes 4 ms at 100 000 tokens per second, which is the second level's quantum: a short request goes before it.
  run("MlfqOrder.LongPromptsSkipLevels", kOneAtATime, ordered("mlfq", "{quantum_ms: 2, prefill_tokens_per_s: 1e5, preemption: recompute}"),
      {"+ 400,1 4,1", "1:4", "0:400"});
  // A token takes 1 ms, and so does each token of a prompt: 60 ms to come for request 1, 54 for request 0, which has the longer output.
  run("AliseOrder.ShortestPredictedTimeFirst", kOneAtATime,
      ordered("alise", "{token_ms: 1, prefill_tokens_per_s: 1000, first_queue_ms: 1000}"), {"+ 40,20 4,50", "1:4"});
}

// Steps until one is `text`, while two short requests come before each of them; -1: not in the first 20.
int wait_for(const std::string& text, ReplicaDriver d) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(d.steps_are({"+ 4,1 4,1"}));
    if (d.step() == text) return i;
  }
  return -1;
}

ReplicaDriver with_first(const std::string& arrival, const char* order, const std::string& params) {
  ReplicaDriver d("vllm_v1", kOneAtATime, ordered(order, params));
  EXPECT_TRUE(d.steps_are({arrival}));
  return d;
}

// Request 0 is at the second level. While short requests keep coming it waits; after 3 ms without service it is promoted, and goes
// before those that came later.
TEST(MlfqOrder, TheStarvedArePromoted) {
  const std::string params = "{quantum_ms: 2, prefill_tokens_per_s: 1e5, scan_steps: 1, starvation_ms: ";
  EXPECT_EQ(wait_for("0:400", with_first("+ 400,1", "mlfq", params + "0}")), -1);
  EXPECT_GE(wait_for("0:400", with_first("+ 400,1", "mlfq", params + "3}")), 3);
}

TEST(OrderScripts, WithSwapsAheadRunAsByHand) {
  const Scripts run{"vllm_v1"};
  const std::string level = "{quantum_ms: 2, prefill_tokens_per_s: 1e5, ", last_level = "{quantum_ms: 1e5, prefill_tokens_per_s: 1e9, ";
  // 10 blocks, of which 3 are to stay free. After step 2 both requests have 4 of them, so request 1 is copied out while request 0
  // continues; its blocks are free when the copy has ended. It would leave 2 free and stays out until request 0 is done.
  run("MlfqOrder.SwapsTheLastOutBeforeMemoryIsFull", "{}", ordered("mlfq", last_level + "swap_ahead_blocks: 3}", 10, 100),
      {"+ 12,20 12,20", "0:12 1:12", "0:1 1:1", "0:1; copies_out 1; free 2",
       "0:1",                                // the copy under way counts: no other leaves
       "copied out; free 6", "0:1 *16", "",  // request 1 is on its way back
       "copied in", "1:1; swaps 1; recomputed 0"});
  // CPU memory of 4 blocks is full: request 2 is held, unless the floor is 0.
  for (const auto& [floor, step] : {std::pair{"0.1}", "0:1"}, {"0}", "0:1 2:4"}})
    run("MlfqOrder.NewPromptsAreHeldWhileCpuMemoryIsShort", "{}",
        ordered("mlfq", last_level + "swap_ahead_blocks: 3, cpu_floor_frac: " + floor, 10, 4), {"+ 12,20 12,20", "? *3", "+ 4,1", step});
  // One row and 3 of 6 blocks free when request 1 overtakes: with 3 blocks to take it lets request 0 keep its own, with 4 it does not: its
  // last step is in the GPU's memory, or it is on its way back.
  const Memory keeping = ordered("mlfq", level + "preemption: keep, swap_ahead_blocks: 1}", 6, 100);
  run("MlfqOrder.PreemptedRequestsStayOnTheGpuWhereTheyFit", kOneAtATime, keeping,
      {"+ 8,16", "? *3; free 3", "+ 12,1", "1:12; copies_out 0", "0:1; preemptions 1; recomputed 0"});
  run("MlfqOrder.AndLeaveWhereTheyDoNot", kOneAtATime, keeping,
      {"+ 8,16", "? *3; free 3", "+ 16,1", "1:16; copies_out 1", "; preemptions 1; recomputed 0"});
  // 9 blocks, of which 4 are to stay free; request 1 leaves 3, so that request 0, which waits on the GPU, is copied out.
  run("MlfqOrder.ThoseThatWaitOnTheGpuLeaveFirst", kOneAtATime, ordered("mlfq", level + "preemption: keep, swap_ahead_blocks: 4}", 9, 100),
      {"+ 8,20", "? *3", "+ 12,3", "1:12; copies_out 0", "1:1; copies_out 1; free 2", "copied out; free 5; preemptions 1"});
  // One row. Request 0 has gone down a level and is overtaken by request 1; it is copied back while request 1 still runs, and has its row
  // as soon as that ends.
  for (const auto& [ahead, second, last] : {std::tuple{"0}", "1:1; copies_in 0", ""}, {"1}", "1:1; copies_in 1", "0:1"}})
    run("MlfqOrder.ComesBackAheadOfItsTurn", kOneAtATime, ordered("mlfq", level + "swap_ahead_blocks: " + ahead, 1000, 100),
        {"+ 4,10", "? *3", "+ 4,2", "1:4", second, "copied in", last});
}

// Request 0 is overtaken after 24 of its 40 prompt tokens, and comes back with room for all 10 blocks: with less it could wait for the
// rest while others wait for its blocks.
TEST(MlfqOrder, ComesBackWithRoomForItsWholePrompt) {
  ReplicaDriver d("vllm_v1", "{max_num_seqs: 1, budget_tokens: 8}",
                  ordered("mlfq", "{quantum_ms: 2, prefill_tokens_per_s: 1e5, swap_ahead_blocks: 1}", 1000, 100));
  ASSERT_TRUE(d.steps_are({"+ 40,2", "0:8 *3", "+ 4,2", "1:4", "1:1; copies_in 1"}));
  EXPECT_EQ(d.state().info(d.copies_in()[0].request).blocks.size(), 10U);
  EXPECT_TRUE(d.steps_are({"copied in", "0:8"}));
}

// A prompt of 3,000 tokens passes 8 layers in 8 steps of 1 ms, so another takes 8 ms: with 4 tokens of output it has more to come than a
// short prompt with 8. A rate by the tokens of all 8 steps would say 1 ms.
TEST(AliseOrder, TokensCountOnceThoughTheirLayersTakeSeveralSteps) {
  ReplicaDriver d("layered_prefill", kOneAtATime,
                  Memory{.max_model_len = 3500, .order = "alise", .order_params = "{token_ms: 1, first_queue_ms: 1000}"});
  d.arrive(3000, 1);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(d.step().substr(0, 6), "0:3000");
  ASSERT_EQ(d.left().size(), 1U);
  EXPECT_TRUE(d.steps_are({"+ 3000,4 4,8", "2:4"}));
}

// Request 0 has 100 ms to come: the last of the queues of 10, 20, 40 ms and more. It is queued at 1 ms; promoted every 3 ms, it is in the
// first queue at 10 ms, after those that are shorter, and before all at 13 ms.
TEST(AliseOrder, TheAgedArePromoted) {
  const std::string params = "{token_ms: 1, prefill_tokens_per_s: 1e9, first_queue_ms: 10, age_s: ";
  EXPECT_EQ(wait_for("0:4", with_first("+ 4,100", "alise", params + "1000}")), -1);
  EXPECT_EQ(wait_for("0:4", with_first("+ 4,100", "alise", params + "0.003}")), 12);
}

}  // namespace
}  // namespace kvlab
