#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(VllmV0Scheduler, Scripts) {
  const Scripts run{"vllm_v0"};
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
  // While a copy is under way the next plan may differ without any step having ended.
  run("NotStableWhileACopyIsUnderWay", "{preemption: swap}", {.num_blocks = 6, .host_blocks = 10},
      {
          "+ 5,9 8,2 8,9", "0:5 1:8 2:8", "0:1 1:1",  // request 2 goes; request 1 is done
          "0:1; copies_in 1; unstable"                // 4 blocks free, 3 needed: the copy back starts
      });
}

TEST(VllmV0Scheduler, MoreScripts) {
  const Scripts run{"vllm_v0"};
  // Prompts 6, 2, 2 with a budget of 10: their sum is exactly 10; 2 x 6 = 12 padded tokens are too many for two of them.
  run("BudgetInTokens", "{budget_tokens: 10, budget_counting: sum}", {}, {"+ 6,1 2,1 2,1", "0:6 1:2 2:2"});
  run("BudgetInPaddedTokens", "{budget_tokens: 10, budget_counting: padded}", {}, {"+ 6,1 2,1 2,1", "0:6"});
  // Swap: request 1 goes to host memory with its 2 blocks. While it is there no new prompt enters (request 2 would fit), though
  // its copy is under way; it comes back with room for its next token when request 0 is done, and decodes from where it was.
  run("SwappedRequestsBlockNewPrompts", "{preemption: swap}", {.num_blocks = 5, .host_blocks = 10},
      {"+ 12,3 8,3", "0:12 1:8", "+ 1,1", "0:1; copies_out 1; out 2/2; free 1",  // a swap-in is not tried in the same step
       "0:1; stable",                                                            // 3 blocks needed for 8 + 1 tokens, 1 free
       "; copies_in 1; free 2",                                                  // request 0 is done, the copy back starts
       "",                                                                       // still copying: request 2 waits
       "copied in", "2:1",                                                       // request 1 runs again, and prompts come before decodes
       "1:1", "1:1; left 3; recomputed 0"});
  // With no room in host memory a swap becomes a recompute, and is counted.
  run("FullHostMemoryFallsBackToRecompute", "{preemption: swap}", {.num_blocks = 3}, {"+ 5,4 4,2", "?", "0:1; fallbacks 1", "0:1"});
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
  EXPECT_TRUE(d.steps_are({"+ 20,30 20,25"}));
  for (int i = 0; i < 100 && d.left().size() < 2; ++i) {
    d.step();
    d.finish_copies();
  }
  EXPECT_EQ(std::tuple(d.left().size(), d.state().counters().swaps), std::tuple(2U, 1U));
}

TEST(VllmV1Scheduler, Scripts) {
  const Scripts run{"vllm_v1"};
  run("LongPromptsComeInShares", "{long_prefill_tokens: 3, budget_tokens: 5}", {}, {"+ 8,2 4,1", "0:3 1:2", "0:3 1:2", "0:2", "0:1"});
  run("WithoutChunkingTheHeadWaitsForAWholeBudget", "{chunked_prefill: false, budget_tokens: 10}", {},
      {"+ 6,2 5,1 1,1", "0:6",  // 5 > 4 stops the loop, though request 2 would fit
       "0:1 1:5 2:1"});
  // The request that finds no block is the last itself: phase A ends, and though a block is left for its chunk, a step that
  // preempted admits no request.
  run("NoAdmissionInAStepThatPreempted", "{long_prefill_tokens: 4, reserve_full_prompt: false}", {.num_blocks = 5},
      {"+ 4,3 4,3 12,3", "0:4 1:4 2:4", "+ 4,1",
       "0:1 1:1; waiting 2 3; free 1",  // they take the last two blocks; request 2's second chunk finds none
       "0:1 1:1 2:4"});
  // The gate counts the current length, not prompt plus output: 20 + 26 blocks in the end, of 30.
  run("TheGateLeavesTheOutputOut", "{}", {.num_blocks = 30}, {"+ 80,2 4,100", "0:80 1:4"});
  // Card 1.4c: the lookup stops at n - 1 tokens, so of a prompt that is cached whole the last block is computed again.
  run("ACachedPromptRecomputesItsWholeLastBlock", "{}", {.prefix_caching = true},
      {"+ 8,1:1:2", "0:8", "+ 8,1:1:2 9,1:1:2 11,1:1:2 8,1:1:7 8,1:9:2", "1:4 2:1 3:3 4:4 5:8; hits 24; lookups 52"});
}

// 4 blocks of 4 tokens, all taken by prompts. Request 0 needs a block: the last running one gives back 2; 0 and 1 take them.
// It is at the head of the queue, before request 3, and recomputes silently until c = old n = 9.
TEST(VllmV1Scheduler, PreemptsTheLastByRecompute) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4});
  ASSERT_TRUE(d.steps_are({"+ 4,2 4,2 8,3", "0:4 1:4 2:8", "+ 4,1", "0:1 1:1; waiting 2 3; preemptions 1; output_tokens 5",
                           "2:9 3:4; recomputed 8", "2:1; left 4"}));
  EXPECT_EQ(d.left()[3].preemptions, 1);
  EXPECT_EQ(d.left()[3].first_token, Time(Span(1'000'000))) << "set once, in the first step";
}

// Order is admission order: the last admitted request goes though the other one arrived later.
TEST(VllmV1Scheduler, TheVictimIsTheLastAdmittedNotTheLatestArrival) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 2});
  TraceRequest request;
  request.prompt_tokens = 4;
  request.output_tokens = 3;
  d.state().receive(request, Time(Span(900)));
  request.number = 1;
  d.state().receive(request, Time(Span(100)));
  EXPECT_TRUE(d.steps_are({"0:4 1:4", "0:1; running 0; waiting 1"}));
}

TEST(VllmV1Scheduler, GateScripts) {
  const Scripts run{"vllm_v1"};
  // Two victims in one step: request 0 needs two blocks for its chunk. The queue keeps their order.
  run("OneVictim", "{long_prefill_tokens: 8, budget_tokens: 12}", {.num_blocks = 4},
      {"+ 16,1 4,5", "0:8 1:4", "0:8"});  // one free block and request 1's
  run("SeveralVictimsKeepTheirOrder", "{long_prefill_tokens: 8, budget_tokens: 16}", {.num_blocks = 4},
      {"+ 16,1 4,5 4,5", "0:8 1:4 2:4", "0:8; waiting 1 2"});
  // Card 1.4b: the gate asks for the whole prompt, at the free blocks of this moment. Request 0 has taken one of 10 blocks with
  // its first chunk; 9 blocks of prompt pass, 10 do not, and request 2 waits after them.
  for (const auto& [arrivals, gate, step] : {std::tuple{"+ 16,2 36,1 1,1", "true", "0:4 1:4 2:1"},
                                             {"+ 16,2 37,1 1,1", "true", "0:4"},  // stop, not skip
                                             {"+ 16,2 37,1 1,1", "false", "0:4 1:4 2:1"}})
    run("FullLengthGateAndHeadOfLine", std::string("{long_prefill_tokens: 4, reserve_full_prompt: ") + gate + "}", {.num_blocks = 10},
        {arrivals, step});
  // Unreferenced hits leave the free list when they are taken. Request 2 needs 2 new blocks and 2 such hits: 4 of the 4
  // that request 1 leaves free, but not of 3.
  for (const auto& [arrivals, step] : {std::pair{"+ 4,3 16,1:1:2:3:4", "1:4 2:8"}, {"+ 5,3 16,1:1:2:3:4", "1:5"}})
    run("TheGateCountsUnreferencedHits", "{}", {.num_blocks = 5, .prefix_caching = true}, {"+ 8,1:1:2", "0:8", arrivals, step});
  // Hashes are published when blocks are allocated: a follower in the same step hits, but only what the leader's chunk covers.
  run("AFollowerInTheSameStepHits", "{}", {.prefix_caching = true}, {"+ 9,1:1:2 9,1:1:2", "0:9 1:1"});
  run("WhatTheChunkCovers", "{long_prefill_tokens: 7}", {.prefix_caching = true},
      {"+ 13,1:1:2:3 13,1:1:2:3", "0:7 1:7; hits 4"});  // one full block: 4 tokens hit, 7 of the other 9
  // Generated tokens are hashed too. Prompt 4 and 4 tokens of output fill the second block in step 5.
  for (const auto& [steps, step] : {std::pair{"? *3", "0:1 1:5"}, {"? *4", "0:1 1:1"}, {"? *6", "1:1"}})
    run("GeneratedTokensAreCached", "{async_scheduling: false}", {.prefix_caching = true}, {"+ 4,6:1:2", steps, "+ 9,1:1:2", step});
}

TEST(VllmV1Scheduler, MoreScripts) {
  const Scripts run{"vllm_v1"};
  // Card 1.4d: freed blocks go to the back, the deepest first. Request 1 takes the blank block and then block 2 of request 0.
  run("TheDeepestBlockIsEvictedFirst", "{}", {.num_blocks = 3, .prefix_caching = true},
      {"+ 8,1:1:2", "0:8", "+ 8,1:5:6", "1:8", "+ 9,1:1:2", "2:5"});
  // A victim's blocks keep their hashes until they are taken: of 3, the two deepest go to requests 0 and 1; the first hits.
  run("AVictimFindsWhatIsLeftOfItsBlocks", "{}", {.num_blocks = 5, .prefix_caching = true},
      {"+ 4,2:1 4,2:2 12,3:3:4:5", "0:4 1:4 2:12", "0:1 1:1", "2:9; recomputed 8"});
  // A request whose own step is in flight cannot come back yet; with room and budget, the next one enters.
  run("ABlockedHeadIsParkedInPlace", "{}", {.num_blocks = 20},
      {"+ 4,9", "plan 0:4", "recompute 0", "+ 4,1", "plan 1:4; waiting 0", "end", "plan 0:5", "end"});
  // Fast-forward may rely on the next plans while no request waits or the head cannot enter.
  run("StableWhileNobodyCanEnter", "{async_scheduling: false}", {.num_blocks = 4},
      {"+ 5,3", "0:5", "0:1; stable", "+ 12,1", "0:1; stable",  // 2 free, 3 needed
       "1:12"});
}

// Asynchronous scheduling: the second step is planned over a token in flight, none beyond the limit. A prompt of 4 with 3
// tokens of output computes 4 + 1 + 1 tokens.
TEST(VllmV1Scheduler, PlansOverATokenInFlight) {
  ReplicaDriver d("vllm_v1", "{}");
  EXPECT_EQ(d.scheduler().pipeline_depth(), 2);
  EXPECT_TRUE(d.steps_are({"+ 4,3 4,1", "plan 0:4 1:4", "plan 0:1"}));  // request 1 has its last token in flight: skipped
  EXPECT_EQ(d.state().info(d.last_step().entries[0].request).known_tokens(), 6);
  ASSERT_TRUE(d.steps_are({"end", "plan 0:1", "end", "plan nothing", "end", "plan nothing; left 2; output_tokens 4"}));
  EXPECT_EQ(d.left()[1].output_tokens, 3);
}

// A block whose last token is in flight has no value to hash: the first allocation that knows the token publishes it.
TEST(VllmV1Scheduler, ATokenInFlightIsNotHashed) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.prefix_caching = true});
  EXPECT_TRUE(d.steps_are({"+ 3,4:1:2", "plan 0:3", "plan 0:1"}));  // the second name says that the first covers generated tokens too
  EXPECT_EQ(d.cached_tokens(5, {1}), 0) << "the fourth token is not known";
  EXPECT_TRUE(d.steps_are({"end", "plan 0:1"}));
  EXPECT_EQ(d.cached_tokens(5, {1}), 4);
}

// The victim's token in flight still comes out while it waits; it is admitted again when no step of its own is in flight.
TEST(VllmV1Scheduler, PreemptedWithAStepInFlight) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4});
  EXPECT_TRUE(d.steps_are({"+ 4,2 4,2 8,3"}));
  EXPECT_EQ(d.plan(), "0:4 1:4 2:8");
  const InFlightStep first = d.last_step();
  EXPECT_TRUE(d.steps_are({"plan 0:1 1:1; waiting 2"}));
  d.end(first, Picoseconds{7'000});
  EXPECT_EQ(d.state().info(first.entries[2].request).output_tokens, 1);
  ASSERT_TRUE(d.steps_are({"plan nothing", "end", "plan 2:9", "plan 2:1", "end", "end", "plan nothing; left 3; free 4"}));
  EXPECT_EQ(std::tuple(d.left()[2].first_token, d.left()[2].preemptions), std::tuple(Time(Span(7)), 1));
}

TEST(VllmV1Scheduler, RowsArePaddedToGraphSizes) {
  const auto padded = [](const std::string& params, std::int32_t tokens) {
    return ReplicaDriver("vllm_v1", params).scheduler().padded_tokens(tokens);
  };
  std::vector<std::int32_t> rows;
  for (const std::int32_t tokens : {1, 2, 3, 4, 5, 8, 9, 17, 256, 257, 497, 512, 513}) rows.push_back(padded("{}", tokens));
  EXPECT_EQ(rows, (std::vector<std::int32_t>{1, 2, 4, 4, 8, 8, 16, 24, 256, 272, 512, 512, 513})) << "the last runs without a graph";
  EXPECT_EQ(padded("{max_num_seqs: 8}", 15), 16) << "graphs reach twice max_num_seqs";
  EXPECT_EQ(padded("{max_num_seqs: 8}", 17), 17);
  EXPECT_EQ(padded("{largest_graph_tokens: 0}", 3), 3);
}

}  // namespace
}  // namespace kvlab
