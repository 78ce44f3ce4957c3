#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

// The driver runs one step at a time; with a step in flight, plan() and finish() take turns.
void finish(ReplicaDriver& d, const InFlightStep& step, Picoseconds at = {}) {
  LogHistogram itl;
  d.state().process_output(step, at, itl);
  d.state().check();
}

// Card 1.4a: there are no phases. Running requests catch up first, in order, under one budget; what is left admits.
TEST(VllmV1Scheduler, OneBudgetForDecodesAndChunks) {
  ReplicaDriver d("vllm_v1", "{budget_tokens: 10}", Memory{});
  d.arrive_all({{6, 3}, {7, 2}, {8, 1}});
  EXPECT_TRUE(d.steps_are({"0:6 1:4", "0:1 1:3 2:6", "0:1 1:1 2:2", ""}));
  EXPECT_EQ(d.left().size(), 3U);
}

TEST(VllmV1Scheduler, LongPromptsComeInShares) {
  ReplicaDriver d("vllm_v1", "{long_prefill_tokens: 3, budget_tokens: 5}", Memory{});
  d.arrive_all({{8, 2}, {4, 1}});
  EXPECT_TRUE(d.steps_are({"0:3 1:2", "0:3 1:2", "0:2", "0:1"}));
}

TEST(VllmV1Scheduler, WithoutChunkingTheHeadWaitsForAWholeBudget) {
  ReplicaDriver d("vllm_v1", "{chunked_prefill: false, budget_tokens: 10}", Memory{});
  d.arrive_all({{6, 2}, {5, 1}, {1, 1}});
  EXPECT_EQ(d.step(), "0:6") << "5 > 4 stops the loop, though request 2 would fit";
  EXPECT_EQ(d.step(), "0:1 1:5 2:1");
}

// 4 blocks of 4 tokens, all taken by prompts. Request 0 needs a block: the last running one gives back 2; 0 and 1 take them.
// It is at the head of the queue, before request 3, and recomputes silently until c = old n = 9.
TEST(VllmV1Scheduler, PreemptsTheLastByRecompute) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4});
  d.arrive_all({{4, 2}, {4, 2}, {8, 3}});
  EXPECT_EQ(d.step(), "0:4 1:4 2:8");
  d.arrive(4, 1);
  EXPECT_EQ(d.step(), "0:1 1:1");
  EXPECT_EQ(d.waiting(), "2 3");
  EXPECT_EQ(d.state().counters().preemptions, 1U);
  EXPECT_EQ(d.state().counters().output_tokens, 5);
  EXPECT_EQ(d.step(), "2:9 3:4");
  EXPECT_EQ(d.state().counters().recomputed_tokens, 8);
  EXPECT_EQ(d.step(), "2:1");
  ASSERT_EQ(d.left().size(), 4U);
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
  EXPECT_TRUE(d.steps_are({"0:4 1:4", "0:1"}));
  EXPECT_EQ(d.running(), "0");
  EXPECT_EQ(d.waiting(), "1");
}

// Two victims in one step: request 0 needs two blocks for its chunk. The queue keeps their order.
TEST(VllmV1Scheduler, SeveralVictimsKeepTheirOrder) {
  ReplicaDriver d("vllm_v1", "{long_prefill_tokens: 8, budget_tokens: 12}", Memory{.num_blocks = 4});
  d.arrive_all({{16, 1}, {4, 5}});
  EXPECT_EQ(d.step(), "0:8 1:4");
  EXPECT_EQ(d.step(), "0:8") << "one free block and request 1's";
  ReplicaDriver e("vllm_v1", "{long_prefill_tokens: 8, budget_tokens: 16}", Memory{.num_blocks = 4});
  e.arrive_all({{16, 1}, {4, 5}, {4, 5}});
  EXPECT_TRUE(e.steps_are({"0:8 1:4 2:4", "0:8"}));
  EXPECT_EQ(e.waiting(), "1 2");
}

// The request that finds no block is the last itself: phase A ends, and though a block is left for its chunk, a step that
// preempted admits nobody.
TEST(VllmV1Scheduler, NoAdmissionInAStepThatPreempted) {
  ReplicaDriver d("vllm_v1", "{long_prefill_tokens: 4, reserve_full_prompt: false}", Memory{.num_blocks = 5});
  d.arrive_all({{4, 3}, {4, 3}, {12, 3}});
  EXPECT_EQ(d.step(), "0:4 1:4 2:4");
  d.arrive(4, 1);
  EXPECT_EQ(d.step(), "0:1 1:1");  // they take the last two blocks; request 2's second chunk finds none
  EXPECT_EQ(d.waiting(), "2 3");
  EXPECT_EQ(d.free_blocks(), 1);
  EXPECT_EQ(d.step(), "0:1 1:1 2:4");
}

// Card 1.4b: the gate asks for the whole prompt, at the free blocks of this moment. Request 0 has taken one of 10 blocks with
// its first chunk; 9 blocks of prompt pass, 10 do not, and request 2 waits after them.
TEST(VllmV1Scheduler, FullLengthGateAndHeadOfLine) {
  const auto first_step = [](int prompt, const std::string& gate) {
    ReplicaDriver d("vllm_v1", "{long_prefill_tokens: 4, reserve_full_prompt: " + gate + "}", Memory{.num_blocks = 10});
    d.arrive_all({{16, 2}, {prompt, 1}, {1, 1}});
    return d.step();
  };
  EXPECT_EQ(first_step(36, "true"), "0:4 1:4 2:1");
  EXPECT_EQ(first_step(37, "true"), "0:4") << "stop, not skip";
  EXPECT_EQ(first_step(37, "false"), "0:4 1:4 2:1");
}

// The gate counts the current length, not prompt plus output: 20 + 26 blocks in the end, of 30.
TEST(VllmV1Scheduler, TheGateLeavesTheOutputOut) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 30});
  d.arrive_all({{80, 2}, {4, 100}});
  EXPECT_EQ(d.step(), "0:80 1:4");
}

// Hits nobody references leave the free list when they are taken. Request 2 needs 2 new blocks and 2 such hits: 4 of the 4
// that request 1 leaves free, but not of 3.
TEST(VllmV1Scheduler, TheGateCountsUnreferencedHits) {
  const auto second_step = [](int other_prompt) {
    ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 5, .prefix_caching = true});
    d.arrive(8, 1, {1, 2});
    EXPECT_EQ(d.step(), "0:8");
    d.arrive_all({{other_prompt, 3}, {16, 1, {1, 2, 3, 4}}});
    return d.step();
  };
  EXPECT_EQ(second_step(4), "1:4 2:8");
  EXPECT_EQ(second_step(5), "1:5");
}

// Card 1.4c: the lookup stops at n - 1 tokens, so of a prompt that is cached whole the last block is computed again.
TEST(VllmV1Scheduler, ACachedPromptRecomputesItsWholeLastBlock) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.prefix_caching = true});
  d.arrive(8, 1, {1, 2});
  EXPECT_EQ(d.step(), "0:8");
  d.arrive_all({{8, 1, {1, 2}}, {9, 1, {1, 2}}, {11, 1, {1, 2}}, {8, 1, {1, 7}}, {8, 1, {9, 2}}});
  EXPECT_EQ(d.step(), "1:4 2:1 3:3 4:4 5:8");
  EXPECT_EQ(d.state().counters().hit_tokens, 4 + 8 + 8 + 4);
  EXPECT_EQ(d.state().counters().lookup_tokens, 8 + 8 + 9 + 11 + 8 + 8);
}

// Hashes are published when blocks are allocated: a follower in the same step hits, but only what the leader's chunk covers.
TEST(VllmV1Scheduler, AFollowerInTheSameStepHits) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.prefix_caching = true});
  d.arrive_all({{9, 1, {1, 2}}, {9, 1, {1, 2}}});
  EXPECT_EQ(d.step(), "0:9 1:1");
  ReplicaDriver chunked("vllm_v1", "{long_prefill_tokens: 7}", Memory{.prefix_caching = true});
  chunked.arrive_all({{13, 1, {1, 2, 3}}, {13, 1, {1, 2, 3}}});
  EXPECT_EQ(chunked.step(), "0:7 1:7") << "one full block: 4 tokens hit, 7 of the other 9";
  EXPECT_EQ(chunked.state().counters().hit_tokens, 4);
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

// Card 1.4d: freed blocks go to the back, the deepest first. Request 1 takes the blank block and then block 2 of request 0.
TEST(VllmV1Scheduler, TheDeepestBlockIsEvictedFirst) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 3, .prefix_caching = true});
  d.arrive(8, 1, {1, 2});
  EXPECT_EQ(d.step(), "0:8");
  d.arrive(8, 1, {5, 6});
  EXPECT_EQ(d.step(), "1:8");
  d.arrive(9, 1, {1, 2});
  EXPECT_EQ(d.step(), "2:5");
}

// A victim's blocks keep their hashes until they are taken: of 3, the two deepest go to requests 0 and 1; the first hits.
TEST(VllmV1Scheduler, AVictimFindsWhatIsLeftOfItsBlocks) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 5, .prefix_caching = true});
  d.arrive_all({{4, 2, {1}}, {4, 2, {2}}, {12, 3, {3, 4, 5}}});
  EXPECT_TRUE(d.steps_are({"0:4 1:4 2:12", "0:1 1:1", "2:9"}));
  EXPECT_EQ(d.state().counters().recomputed_tokens, 8);
}

// Asynchronous scheduling: the second step is planned over a token in flight, none beyond the limit. A prompt of 4 with 3
// tokens of output computes 4 + 1 + 1 tokens.
TEST(VllmV1Scheduler, PlansOverATokenInFlight) {
  ReplicaDriver d("vllm_v1", "{}", Memory{});
  EXPECT_EQ(d.scheduler().pipeline_depth(), 2);
  d.arrive_all({{4, 3}, {4, 1}});
  EXPECT_EQ(d.plan(), "0:4 1:4");
  const InFlightStep first = d.last_step();
  EXPECT_EQ(d.plan(), "0:1") << "request 1 has its last token in flight: skipped";
  const InFlightStep second = d.last_step();
  EXPECT_EQ(d.state().info(second.entries[0].request).known_tokens(), 6);
  finish(d, first);
  EXPECT_EQ(d.plan(), "0:1");
  const InFlightStep third = d.last_step();
  finish(d, second);
  EXPECT_EQ(d.plan(), "");
  finish(d, third);
  EXPECT_EQ(d.plan(), "");
  ASSERT_EQ(d.left().size(), 2U);
  EXPECT_EQ(d.left()[1].output_tokens, 3);
  EXPECT_EQ(d.state().counters().output_tokens, 4);
}

TEST(VllmV1Scheduler, ARequestAtItsLimitIsSkippedNotAStop) {
  ReplicaDriver d("vllm_v1", "{}", Memory{});
  d.arrive_all({{4, 1}, {4, 2}});
  EXPECT_EQ(d.plan(), "0:4 1:4");
  EXPECT_EQ(d.plan(), "1:1");
}

TEST(VllmV1Scheduler, SynchronousSchedulingWaitsForTheOutput) {
  ReplicaDriver d("vllm_v1", "{async_scheduling: false}", Memory{});
  EXPECT_EQ(d.scheduler().pipeline_depth(), 1);
  d.arrive(4, 2);
  EXPECT_EQ(d.plan(), "0:4");
  const InFlightStep first = d.last_step();
  EXPECT_EQ(d.plan(), "");
  finish(d, first);
  EXPECT_EQ(d.plan(), "0:1");
}

// A block whose last token is in flight has no value to hash: the first allocation that knows the token publishes it.
TEST(VllmV1Scheduler, ATokenInFlightIsNotHashed) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.prefix_caching = true});
  TraceRequest follower;
  const std::vector<std::uint64_t> content{1};
  follower.prompt_tokens = 5;
  follower.output_tokens = 1;
  follower.hash_tokens = 4;
  follower.hashes = content;
  d.arrive(3, 4, {1, 2});  // the second name says that the first covers generated tokens too
  EXPECT_EQ(d.plan(), "0:3");
  const InFlightStep first = d.last_step();
  EXPECT_EQ(d.plan(), "0:1");
  EXPECT_EQ(d.state().memory().cached_tokens(follower), 0) << "the fourth token is not known";
  finish(d, first);
  EXPECT_EQ(d.plan(), "0:1");
  EXPECT_EQ(d.state().memory().cached_tokens(follower), 4);
}

// The victim's token in flight still comes out while it waits; it is admitted again when no step of its own is in flight.
TEST(VllmV1Scheduler, PreemptedWithAStepInFlight) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4});
  d.arrive_all({{4, 2}, {4, 2}, {8, 3}});
  EXPECT_EQ(d.plan(), "0:4 1:4 2:8");
  const InFlightStep first = d.last_step();
  EXPECT_EQ(d.plan(), "0:1 1:1");
  const InFlightStep second = d.last_step();
  EXPECT_EQ(d.waiting(), "2");
  finish(d, first, Picoseconds{7'000});
  EXPECT_EQ(d.state().info(first.entries[2].request).output_tokens, 1);
  EXPECT_EQ(d.plan(), "");
  finish(d, second);
  EXPECT_EQ(d.plan(), "2:9");
  const InFlightStep third = d.last_step();
  EXPECT_EQ(d.plan(), "2:1");
  const InFlightStep fourth = d.last_step();
  finish(d, third);
  finish(d, fourth);
  EXPECT_EQ(d.plan(), "");
  ASSERT_EQ(d.left().size(), 3U);
  EXPECT_EQ(d.left()[2].first_token, Time(Span(7)));
  EXPECT_EQ(d.left()[2].preemptions, 1);
  EXPECT_EQ(d.free_blocks(), 4);
}

// A request whose own step is in flight cannot come back yet; with room and budget, the next one enters.
TEST(VllmV1Scheduler, ABlockedHeadIsParkedInPlace) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 20});
  d.arrive(4, 9);
  EXPECT_EQ(d.plan(), "0:4");
  const InFlightStep first = d.last_step();
  d.state().preempt(first.entries[0].request, Preemption::kRecompute, QueueEnd::kFront);
  d.arrive(4, 1);
  EXPECT_EQ(d.plan(), "1:4");
  const InFlightStep second = d.last_step();
  EXPECT_EQ(d.waiting(), "0");
  finish(d, first);
  EXPECT_EQ(d.plan(), "0:5");
  finish(d, second);
}

TEST(VllmV1Scheduler, RowsArePaddedToGraphSizes) {
  ReplicaDriver d("vllm_v1", "{}", Memory{});
  const auto padded = [&](std::int32_t tokens) { return d.scheduler().padded_tokens(tokens); };
  EXPECT_EQ(padded(1), 1);
  EXPECT_EQ(padded(2), 2);
  EXPECT_EQ(padded(3), 4);
  EXPECT_EQ(padded(4), 4);
  EXPECT_EQ(padded(5), 8);
  EXPECT_EQ(padded(8), 8);
  EXPECT_EQ(padded(9), 16);
  EXPECT_EQ(padded(17), 24);
  EXPECT_EQ(padded(256), 256);
  EXPECT_EQ(padded(257), 272);
  EXPECT_EQ(padded(497), 512);
  EXPECT_EQ(padded(512), 512);
  EXPECT_EQ(padded(513), 513) << "larger steps run without a graph";
  ReplicaDriver small("vllm_v1", "{max_num_seqs: 8}", Memory{});
  EXPECT_EQ(small.scheduler().padded_tokens(15), 16) << "graphs reach twice max_num_seqs";
  EXPECT_EQ(small.scheduler().padded_tokens(17), 17);
  ReplicaDriver eager("vllm_v1", "{largest_graph_tokens: 0}", Memory{});
  EXPECT_EQ(eager.scheduler().padded_tokens(3), 3);
}

// Fast-forward may rely on the next plans while nobody waits or the head cannot enter.
TEST(VllmV1Scheduler, StableWhileNobodyCanEnter) {
  ReplicaDriver d("vllm_v1", "{async_scheduling: false}", Memory{.num_blocks = 4});
  d.arrive(5, 3);
  EXPECT_TRUE(d.steps_are({"0:5", "0:1"}));
  EXPECT_TRUE(d.is_stable());
  d.arrive(12, 1);
  EXPECT_EQ(d.step(), "0:1");  // 2 free, 3 needed
  EXPECT_TRUE(d.is_stable());
  EXPECT_EQ(d.step(), "1:12");
}

}  // namespace
}  // namespace kvlab
