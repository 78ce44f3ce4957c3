#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(VllmV1Scheduler, Scripts) {
  const Scripts run{"vllm_v1"};
  // Card 1.4a: there are no phases. Running requests catch up first, in order, under one budget; what is left admits.
  run("OneBudgetForDecodesAndChunks", "{budget_tokens: 10}", {}, {"+ 6,3 7,2 8,1", "0:6 1:4", "0:1 1:3 2:6", "0:1 1:1 2:2", "; left 3"});
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

// Two victims in one step: request 0 needs two blocks for its chunk. The queue keeps their order.
TEST(VllmV1Scheduler, SeveralVictimsKeepTheirOrder) {
  ReplicaDriver d("vllm_v1", "{long_prefill_tokens: 8, budget_tokens: 12}", Memory{.num_blocks = 4});
  EXPECT_TRUE(d.steps_are({"+ 16,1 4,5", "0:8 1:4", "0:8"}));  // one free block and request 1's
  ReplicaDriver e("vllm_v1", "{long_prefill_tokens: 8, budget_tokens: 16}", Memory{.num_blocks = 4});
  EXPECT_TRUE(e.steps_are({"+ 16,1 4,5 4,5", "0:8 1:4 2:4", "0:8; waiting 1 2"}));
}

// Card 1.4b: the gate asks for the whole prompt, at the free blocks of this moment. Request 0 has taken one of 10 blocks with
// its first chunk; 9 blocks of prompt pass, 10 do not, and request 2 waits after them.
TEST(VllmV1Scheduler, FullLengthGateAndHeadOfLine) {
  for (const auto& [arrivals, gate, step] : {std::tuple{"+ 16,2 36,1 1,1", "true", "0:4 1:4 2:1"},
                                             {"+ 16,2 37,1 1,1", "true", "0:4"},  // stop, not skip
                                             {"+ 16,2 37,1 1,1", "false", "0:4 1:4 2:1"}}) {
    const std::string params = std::string("{long_prefill_tokens: 4, reserve_full_prompt: ") + gate + "}";
    EXPECT_TRUE(ReplicaDriver("vllm_v1", params, Memory{.num_blocks = 10}).steps_are({arrivals, step})) << arrivals << gate;
  }
}

// Unreferenced hits leave the free list when they are taken. Request 2 needs 2 new blocks and 2 such hits: 4 of the 4
// that request 1 leaves free, but not of 3.
TEST(VllmV1Scheduler, TheGateCountsUnreferencedHits) {
  for (const auto& [arrivals, step] : {std::pair{"+ 4,3 16,1:1:2:3:4", "1:4 2:8"}, {"+ 5,3 16,1:1:2:3:4", "1:5"}}) {
    ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 5, .prefix_caching = true});
    EXPECT_TRUE(d.steps_are({"+ 8,1:1:2", "0:8", arrivals, step})) << arrivals;
  }
}

// Hashes are published when blocks are allocated: a follower in the same step hits, but only what the leader's chunk covers.
TEST(VllmV1Scheduler, AFollowerInTheSameStepHits) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.prefix_caching = true});
  EXPECT_TRUE(d.steps_are({"+ 9,1:1:2 9,1:1:2", "0:9 1:1"}));
  ReplicaDriver chunked("vllm_v1", "{long_prefill_tokens: 7}", Memory{.prefix_caching = true});
  EXPECT_TRUE(chunked.steps_are({"+ 13,1:1:2:3 13,1:1:2:3", "0:7 1:7; hits 4"}));  // one full block: 4 tokens hit, 7 of the other 9
}

// Generated tokens are hashed too. Prompt 4 and 4 tokens of output fill the second block in step 5.
TEST(VllmV1Scheduler, GeneratedTokensAreCached) {
  for (const int steps : {3, 4, 6}) {
    ReplicaDriver d("vllm_v1", "{async_scheduling: false}", Memory{.prefix_caching = true});
    d.arrive(4, 6, {1, 2});
    for (int i = 0; i < steps; ++i) d.step();
    d.arrive(9, 1, {1, 2});
    EXPECT_EQ(d.step(), steps == 3 ? "0:1 1:5" : steps == 4 ? "0:1 1:1" : "1:1") << steps;
  }
}

TEST(VllmV1Scheduler, MoreScripts) {
  const Scripts run{"vllm_v1"};
  // Card 1.4d: freed blocks go to the back, the deepest first. Request 1 takes the blank block and then block 2 of request 0.
  run("TheDeepestBlockIsEvictedFirst", "{}", {.num_blocks = 3, .prefix_caching = true},
      {"+ 8,1:1:2", "0:8", "+ 8,1:5:6", "1:8", "+ 9,1:1:2", "2:5"});
  // A victim's blocks keep their hashes until they are taken: of 3, the two deepest go to requests 0 and 1; the first hits.
  run("AVictimFindsWhatIsLeftOfItsBlocks", "{}", {.num_blocks = 5, .prefix_caching = true},
      {"+ 4,2:1 4,2:2 12,3:3:4:5", "0:4 1:4 2:12", "0:1 1:1", "2:9; recomputed 8"});
  run("ARequestAtItsLimitIsSkippedNotAStop", "{}", {}, {"+ 4,1 4,2", "plan 0:4 1:4", "plan 1:1"});
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

TEST(VllmV1Scheduler, SynchronousSchedulingWaitsForTheOutput) {
  ReplicaDriver d("vllm_v1", "{async_scheduling: false}");
  EXPECT_EQ(d.scheduler().pipeline_depth(), 1);
  EXPECT_TRUE(d.steps_are({"+ 4,2", "plan 0:4", "plan nothing", "end", "plan 0:1"}));
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

// A request whose own step is in flight cannot come back yet; with room and budget, the next one enters.
TEST(VllmV1Scheduler, ABlockedHeadIsParkedInPlace) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 20});
  EXPECT_TRUE(d.steps_are({"+ 4,9", "plan 0:4"}));
  d.state().preempt(d.last_step().entries[0].request, Preemption::kRecompute, QueueEnd::kFront);
  EXPECT_TRUE(d.steps_are({"+ 4,1", "plan 1:4; waiting 0", "end", "plan 0:5", "end"}));
}

TEST(VllmV1Scheduler, RowsArePaddedToGraphSizes) {
  const auto padded = [](const std::string& params, std::int32_t tokens) {
    return ReplicaDriver("vllm_v1", params).scheduler().padded_tokens(tokens);
  };
  for (const auto& [tokens, rows] : {std::pair{1, 1},
                                     {2, 2},
                                     {3, 4},
                                     {4, 4},
                                     {5, 8},
                                     {8, 8},
                                     {9, 16},
                                     {17, 24},
                                     {256, 256},
                                     {257, 272},
                                     {497, 512},
                                     {512, 512},
                                     {513, 513}})  // larger steps run without a graph
    EXPECT_EQ(padded("{}", tokens), rows) << tokens;
  EXPECT_EQ(padded("{max_num_seqs: 8}", 15), 16) << "graphs reach twice max_num_seqs";
  EXPECT_EQ(padded("{max_num_seqs: 8}", 17), 17);
  EXPECT_EQ(padded("{largest_graph_tokens: 0}", 3), 3);
}

}  // namespace
}  // namespace kvlab
