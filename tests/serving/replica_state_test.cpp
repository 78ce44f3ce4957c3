#include "serving/replica_state.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <tuple>

#include "policies/kv/grouped_layers.h"
#include "tests/serving/sink_window.h"

namespace kvlab {
namespace {

constexpr std::int32_t kBlockTokens = 4;
constexpr std::int32_t kPagesPerBlock = 2;

// A replica driven by hand, without a scheduler. Every operation is followed by check().
class DrivenReplica {
 public:
  struct Setup {
    std::uint32_t blocks = 20;
    std::int64_t host_blocks = 0;
    std::int32_t kept_tokens = 0;  // sinks and a window; 0: every token is kept
    Footprint::OnPreempt on_preempt = Footprint::OnPreempt::kSwap;
    std::vector<SeqState>* charged = nullptr;  // of such a policy: the sequences of its steps,
    std::int32_t fresh_tokens = 1;             // and how many of a prompt's last tokens it observes
    bool prefix_caching = true, is_contiguous = false, plans_over_unknown = false;
    std::optional<LayerGroups> groups = {};  // of layers that keep less than others
  };

  explicit DrivenReplica(const Setup& setup) {
    ReplicaLimits limits;
    limits.block_tokens = kBlockTokens;
    limits.max_model_len = 200;
    limits.host_blocks = setup.host_blocks;
    limits.prefix_caching = setup.prefix_caching;
    limits.is_contiguous = setup.is_contiguous;
    limits.plans_over_unknown = setup.plans_over_unknown;
    Params no_parameters = Params::empty("lru");
    auto pool = std::make_unique<BlockPool>(setup.blocks, kPagesPerBlock, BlockCacheRegistry::make("lru", no_parameters, "block cache"));
    std::unique_ptr<Footprint> footprint = std::make_unique<KeepAll>();
    if (setup.kept_tokens > 0) {
      auto window = std::make_unique<testing::SinkWindow>(setup.kept_tokens, kBlockTokens, kPagesPerBlock, setup.on_preempt);
      window->note_charged(setup.charged);
      window->observe_last(setup.fresh_tokens);
      footprint = std::move(window);
    }
    if (setup.groups) footprint = std::make_unique<GroupedLayers>(*setup.groups);
    state_ = std::make_unique<ReplicaState>(limits, std::move(pool), std::move(footprint));
  }

  // The new request's slot, at the end of the waiting queue.
  RequestId arrive(std::int32_t prompt, std::int32_t output, const std::vector<std::uint64_t>& content = {}) {
    TraceRequest request = request_of(prompt, output, contents_.emplace_back(content));
    request.number = number_++;
    state_->receive(request, Time());
    state_->begin_plan(Time(Span(++now_)));
    check();
    return state_->waiting(state_->num_waiting() - 1);
  }
  static TraceRequest request_of(std::int32_t prompt, std::int32_t output, const std::vector<std::uint64_t>& content) {
    TraceRequest request;
    request.prompt_tokens = prompt;
    request.output_tokens = output;
    request.hash_tokens = kBlockTokens;
    request.hashes = content;
    return request;
  }

  // Its prompt is computed in one step.
  RequestId arrive_and_run(std::int32_t prompt, std::int32_t output, const std::vector<std::uint64_t>& content = {}) {
    const RequestId r = arrive(prompt, output, content);
    EXPECT_TRUE(run(r, prompt));
    return r;
  }

  // Room for m tokens, admitted if it waits, and a step in flight.
  bool start(RequestId r, std::int32_t m, InFlightStep& step) {
    const bool fits = state_->try_allocate(r, m);
    check();
    if (!fits) return false;
    if (!state_->info(r).is_running) state_->admit(r);
    step.clear();
    step.add(r, m);
    state_->commit(step);
    check();
    return true;
  }
  void finish(const InFlightStep& step) {
    LogHistogram itl;
    state_->process_output(step, to_ps(Span(++now_)), itl);
    check();
  }
  bool run(RequestId r, std::int32_t m) {
    InFlightStep step;
    if (!start(r, m, step)) return false;
    finish(step);
    return true;
  }
  void preempt(RequestId r, Preemption mode = Preemption::kRecompute) {
    state_->preempt(r, mode, QueueEnd::kFront);
    check();
  }
  void check() const { state_->check(); }

  ReplicaState& state() { return *state_; }
  const BlockPool& pool() { return state_->pool(); }
  // Free blocks, and pages of cut sequences.
  auto room() { return std::tuple(state_->free_blocks(), pool().private_pages()); }
  const Request& request(RequestId r) { return state_->table()[r]; }

 private:
  std::unique_ptr<ReplicaState> state_;
  std::deque<std::vector<std::uint64_t>> contents_;
  std::uint64_t number_ = 0;
  std::int64_t now_ = 0;
};

// A cut sequence keeps 8 tokens, 2 blocks' worth of pages.
constexpr std::int32_t kKept = 8;
const std::vector<std::uint64_t> kFiveBlocks{11, 12, 13, 14, 15};

// Blocks have names if a request has hashes and prefix caching is on, before and after it stopped sharing blocks.
TEST(ReplicaStreaming, ThePolicyHearsWhichBlocksHaveNames) {
  for (const bool caches : {true, false}) {
    for (const std::vector<std::uint64_t>& content : {kFiveBlocks, {}}) {
      std::vector<SeqState> charged;
      DrivenReplica r({.blocks = 20, .kept_tokens = kKept, .charged = &charged, .prefix_caching = caches});
      const RequestId id = r.arrive_and_run(20, 30, content);
      ASSERT_TRUE(r.run(id, 1));
      ASSERT_EQ(charged.size(), 2U);
      for (const SeqState& seq : charged) EXPECT_EQ(seq.is_named, caches && !content.empty());
      EXPECT_FALSE(charged[0].left_hashed);
      EXPECT_TRUE(charged[1].left_hashed);
    }
  }
}

// In a cached prefix of four blocks, tokens that the policy observes are computed anew: in other requests' blocks and in its own.
TEST(ReplicaStreaming, HitsEndBeforeWhatThePolicyObserves) {
  const auto found = [](std::int32_t fresh, std::int32_t prompt) {
    DrivenReplica r({.blocks = 20, .kept_tokens = 100, .fresh_tokens = fresh});
    r.arrive_and_run(17, 2, {11, 12, 13, 14});
    const std::vector<std::uint64_t> content = kFiveBlocks;
    EXPECT_EQ(r.state().memory().cached_tokens(DrivenReplica::request_of(prompt, 2, content)),
              r.state().lookup(r.arrive(prompt, 2, content)));
    const RequestId unnamed = r.arrive_and_run(prompt, 2);
    r.preempt(unnamed);
    return std::pair(r.state().lookup(r.arrive(prompt, 2, content)), r.state().lookup(unnamed));
  };
  for (const auto& [fresh, prompt, named, unnamed] :
       {std::tuple{1, 20, 16, 20}, {4, 20, 16, 16}, {5, 20, 12, 12}, {5, 21, 16, 16}, {30, 20, 0, 0}, {INT32_MAX, 20, 0, 0}})
    EXPECT_EQ(found(fresh, prompt), std::pair(named, unnamed)) << fresh << " of " << prompt;
}

// Three groups of layers with a window of 8 tokens have a page each per 4 tokens, beside blocks of two pages.
TEST(ReplicaStreaming, PagesThatAWindowHasLeftGoBackBeforeTheNextStep) {
  DrivenReplica r({.blocks = 40, .host_blocks = 40, .groups = LayerGroups{kBlockTokens, 8, 3, 0, 0}});
  const RequestId id = r.arrive(20, 30, kFiveBlocks);
  EXPECT_EQ(r.state().blocks_needed(id, 20), 5 + 8);
  ASSERT_TRUE(r.run(id, 20));
  EXPECT_EQ(r.pool().private_pages(), 3 * 5) << "until the next step is planned";
  for (const int pages : {3 * 3, 3 * 3, 3 * 3, 3 * 2}) {
    ASSERT_TRUE(r.run(id, 1));
    EXPECT_EQ(r.pool().private_pages(), pages);
  }
  EXPECT_EQ(r.state().free_blocks(), 40 - 6 - 3);
  EXPECT_EQ(r.state().memory().wasted_tokens(), 0) << "the pages hold tokens that the blocks hold too";
  r.preempt(id);
  EXPECT_EQ(r.pool().private_pages(), 0);
  ASSERT_TRUE(r.run(id, 1)) << "its six full blocks are found again";
  EXPECT_EQ(r.pool().private_pages(), 3 * 3);
  r.preempt(id, Preemption::kSwap);
  EXPECT_EQ(r.state().free_blocks(), 40);
}

// A prompt of 20 tokens is 5 blocks; while its last chunk runs the 2 private blocks are held as well: 7 in all.
TEST(ReplicaStreaming, PeakThenPrivatePagesThenConstant) {
  DrivenReplica r({.blocks = 8, .kept_tokens = kKept});
  const RequestId id = r.arrive(20, 30, kFiveBlocks);
  EXPECT_EQ(std::tuple(r.state().blocks_needed(id, 20), r.state().peak_blocks(id)), std::tuple(7, 7));
  InFlightStep step;
  ASSERT_TRUE(r.start(id, 20, step));
  EXPECT_EQ(r.room(), std::tuple(1, 4)) << "old blocks and new pages together";
  ASSERT_EQ(step.policy.ops.size(), 1U);
  EXPECT_EQ(step.policy.ops[0].bytes, 8);
  EXPECT_TRUE(step.entries[0].leaves_hashed);
  EXPECT_FALSE(step.is_uniform);
  r.finish(step);
  EXPECT_EQ(r.state().free_blocks(), 6) << "the blocks return when the output is processed";
  EXPECT_EQ(r.pool().cached_blocks(), 5) << "and stay published";
  EXPECT_EQ(r.state().memory().cached_tokens(DrivenReplica::request_of(21, 1, kFiveBlocks)), 20);
  for (int i = 0; i < 28; ++i) {
    ASSERT_TRUE(r.run(id, 1));
    ASSERT_EQ(r.room(), std::tuple(6, 4));
    ASSERT_EQ(std::tuple(r.request(id).kept_tokens, r.state().memory().wasted_tokens()), std::tuple(8, 0));
  }
  EXPECT_EQ(r.request(id).computed_tokens, 48);
  ASSERT_TRUE(r.run(id, 1));
  ASSERT_EQ(r.state().outbox().size(), 1U);
  EXPECT_EQ(r.state().outbox()[0].outcome, Outcome::kCompleted);
  EXPECT_EQ(r.room(), std::tuple(8, 0));
}

// One block less than the peak: never received; one that others hold: all or nothing.
TEST(ReplicaStreaming, ThePeakMustFit) {
  DrivenReplica small({.blocks = 6, .kept_tokens = kKept});
  small.state().receive(DrivenReplica::request_of(20, 30, kFiveBlocks), Time());
  ASSERT_EQ(small.state().outbox().size(), 1U);
  EXPECT_EQ(small.state().outbox()[0].outcome, Outcome::kRejected);
  DrivenReplica r({.blocks = 7, .kept_tokens = kKept});
  r.arrive_and_run(1, 9);
  const RequestId id = r.arrive(20, 30, kFiveBlocks);
  InFlightStep step;
  EXPECT_FALSE(r.start(id, 20, step));
  EXPECT_EQ(r.state().free_blocks(), 6);
  EXPECT_TRUE(r.start(id, 19, step)) << "an incomplete prompt is not cut";
  EXPECT_EQ(r.pool().private_pages(), 0);
}

// A prompt in chunks is cut when it is complete; a follower hits its blocks and is cut on its own.
TEST(ReplicaStreaming, ChunksAndAFollower) {
  DrivenReplica r({.blocks = 12, .kept_tokens = kKept});
  const RequestId leader = r.arrive(20, 9, kFiveBlocks);
  ASSERT_TRUE(r.run(leader, 12));
  EXPECT_FALSE(r.request(leader).left_hashed);
  EXPECT_EQ(std::tuple(r.state().free_blocks(), r.state().blocks_needed(leader, 8)), std::tuple(9, 4));
  ASSERT_TRUE(r.run(leader, 8));
  EXPECT_TRUE(r.request(leader).left_hashed);
  const RequestId follower = r.arrive(20, 9, kFiveBlocks);
  EXPECT_EQ(r.state().lookup(follower), 16);
  EXPECT_EQ(r.state().blocks_needed(follower, 4), 4 + 1 + 2) << "free hits, the last block, the pages";
  ASSERT_TRUE(r.run(follower, 4));
  EXPECT_EQ(r.room(), std::tuple(8, 8));
}

// A short prompt grows until the budget of 8 is full; the ninth token cuts it: 3 old blocks and 2 of pages for one step.
TEST(ReplicaStreaming, CutWhileDecoding) {
  DrivenReplica r({.blocks = 10, .kept_tokens = kKept});
  const RequestId id = r.arrive_and_run(4, 20);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(r.run(id, 1));
  EXPECT_FALSE(r.request(id).left_hashed);
  EXPECT_EQ(r.state().free_blocks(), 8);
  InFlightStep step;
  ASSERT_TRUE(r.start(id, 1, step));
  EXPECT_EQ(r.state().free_blocks(), 5);
  r.finish(step);
  EXPECT_EQ(r.room(), std::tuple(8, 4));
}

// With a second step in flight over the cut, the old blocks return with the output of the step that cut.
TEST(ReplicaStreaming, CutWithTwoStepsInFlight) {
  DrivenReplica r({.blocks = 8, .kept_tokens = kKept, .plans_over_unknown = true});
  const RequestId id = r.arrive(20, 3, kFiveBlocks);
  InFlightStep first, second;
  ASSERT_TRUE(r.start(id, 20, first));
  ASSERT_TRUE(r.start(id, 1, second));
  EXPECT_EQ(r.state().free_blocks(), 1);
  EXPECT_EQ(second.entries[0].kv_before, 8);
  r.finish(first);
  EXPECT_EQ(r.state().free_blocks(), 6);
  r.finish(second);
  EXPECT_EQ(r.state().free_blocks(), 6);
  ASSERT_TRUE(r.run(id, 1));
  EXPECT_EQ(r.state().free_blocks(), 8);
}

// A cut sequence has no hashes to come back by, so it is swapped though recompute was asked for.
TEST(ReplicaStreaming, PreemptionSwaps) {
  DrivenReplica r({.blocks = 8, .host_blocks = 2, .kept_tokens = kKept});
  const RequestId id = r.arrive_and_run(20, 9, kFiveBlocks);
  ASSERT_TRUE(r.run(id, 1));
  r.preempt(id);
  EXPECT_TRUE(r.state().info(id).is_swapped);
  EXPECT_EQ(std::tuple(r.state().free_blocks(), r.state().memory().num_swapped()), std::tuple(8, 1));
  ASSERT_EQ(r.state().swap_copies().size(), 1U);
  EXPECT_EQ(std::tuple(r.state().swap_copies()[0].blocks, r.state().swap_copies()[0].to_host), std::tuple(2, true));
  EXPECT_EQ(r.state().info(id).computed_tokens, 21);
  ASSERT_TRUE(r.state().try_swap_in(id, 1));
  r.check();
  EXPECT_TRUE(r.state().info(id).is_parked);
  EXPECT_EQ(r.pool().private_pages(), 4);
  r.state().finish_swap_in(id, Time(Span(50)));
  r.check();
  EXPECT_EQ(r.state().memory().num_swapped(), 0);
  ASSERT_TRUE(r.run(id, 1));
  const auto& counters = r.state().counters();
  EXPECT_EQ(std::tuple(counters.swaps, counters.recompute_fallbacks, counters.recomputed_tokens), std::tuple(1U, 0U, 0));
  r.preempt(id);
  EXPECT_TRUE(r.state().info(id).is_swapped) << "host memory was given back by the swap-in";
}

// One host block is not two: recompute, counted. The tokens come back in chunks, each with room of its own.
TEST(ReplicaStreaming, FullHostMemoryRecomputes) {
  DrivenReplica r({.blocks = 8, .host_blocks = 1, .kept_tokens = kKept});
  const RequestId id = r.arrive_and_run(20, 9, kFiveBlocks);
  ASSERT_TRUE(r.run(id, 1));
  r.preempt(id);
  EXPECT_FALSE(r.state().info(id).is_swapped);
  EXPECT_TRUE(r.state().swap_copies().empty());
  EXPECT_EQ(std::tuple(r.state().counters().recompute_fallbacks, r.state().counters().preemptions), std::tuple(1U, 1U));
  EXPECT_EQ(std::tuple(r.state().info(id).computed_tokens, r.state().free_blocks()), std::tuple(0, 8));
  EXPECT_EQ(r.state().lookup(id), 0) << "the uncut prompt in the cache is not what it held";
  EXPECT_EQ(r.state().blocks_needed(id, 10), 2) << "pieces no longer than the budget of 8";
  ASSERT_TRUE(r.run(id, 10));
  EXPECT_EQ(r.pool().private_pages(), 4) << "what the chunk needed beyond 8 tokens is back";
  InFlightStep step;
  ASSERT_TRUE(r.start(id, 12, step));
  EXPECT_EQ(r.pool().private_pages(), 2 * 4) << "8 kept and a piece of 8 of the 12 new tokens";
  EXPECT_TRUE(step.entries[0].emits);
  r.finish(step);
  EXPECT_EQ(std::tuple(r.pool().private_pages(), r.state().counters().recomputed_tokens, r.state().info(id).output_tokens),
            std::tuple(4, 21, 3));
}

TEST(ReplicaStreaming, RecomputeMayBeChosen) {
  DrivenReplica r({.blocks = 8, .host_blocks = 9, .kept_tokens = kKept, .on_preempt = Footprint::OnPreempt::kRecomputeChunked});
  const RequestId id = r.arrive_and_run(20, 9);
  r.preempt(id, Preemption::kSwap);
  EXPECT_FALSE(r.state().info(id).is_swapped);
  EXPECT_EQ(r.state().counters().recompute_fallbacks, 0U) << "no fallback: this was asked for";
}

// Content without a name is in no index, but nobody has overwritten the request's own 3 full blocks.
TEST(ReplicaPreemption, UnnamedContentFindsItsOwnBlocks) {
  DrivenReplica r({.blocks = 5});
  const RequestId id = r.arrive(12, 9);
  EXPECT_EQ(r.state().lookup(id), 0);
  ASSERT_TRUE(r.run(id, 12));
  r.preempt(id);
  EXPECT_EQ(std::tuple(r.state().free_blocks(), r.state().lookup(id)), std::tuple(5, 12));
  const RequestId twin = r.arrive(12, 9);
  EXPECT_EQ(r.state().lookup(twin), 0) << "nobody else finds them";
  EXPECT_EQ(r.state().blocks_needed(id, 1), 4);
  ASSERT_TRUE(r.run(id, 1));
  EXPECT_EQ(std::tuple(r.state().info(id).computed_tokens, r.state().info(id).output_tokens), std::tuple(13, 2));
  EXPECT_EQ(r.state().counters().recomputed_tokens, 0);
}

// Blank blocks are taken first, then the deepest it left: another request of 3 blocks leaves 2 of its 3.
TEST(ReplicaPreemption, OverwrittenBlocksAreLost) {
  DrivenReplica r({.blocks = 5});
  const RequestId id = r.arrive_and_run(12, 9);
  r.preempt(id);
  r.arrive_and_run(12, 1);
  EXPECT_EQ(r.state().lookup(id), 8);
  ASSERT_TRUE(r.run(id, 5));
  EXPECT_EQ(r.state().counters().recomputed_tokens, 4);
  r.preempt(id);
  EXPECT_EQ(r.state().lookup(id), 12) << "remembered anew";
}

// The trace names the prompt's three blocks; the fourth was generated.
TEST(ReplicaPreemption, GeneratedBlocksAreFoundBehindNamedOnes) {
  DrivenReplica r({.blocks = 9});
  const RequestId id = r.arrive_and_run(12, 9, {1, 2, 3});
  for (int t = 0; t < 5; ++t) ASSERT_TRUE(r.run(id, 1));
  r.preempt(id);
  EXPECT_EQ(r.state().lookup(id), 16);
  ASSERT_TRUE(r.run(id, 2));
  EXPECT_EQ(r.state().counters().recomputed_tokens, 1);
  r.preempt(id);
  const RequestId other = r.arrive(23, 1);
  ASSERT_TRUE(r.run(other, 23)) << "takes the four blank blocks, and of the first request's the fourth and what was behind it";
  EXPECT_EQ(r.state().lookup(id), 12);
}

TEST(ReplicaPreemption, WithoutPrefixCachingNothingIsFound) {
  DrivenReplica r({.blocks = 5, .prefix_caching = false});
  const RequestId id = r.arrive_and_run(12, 9, {1, 2, 3});
  r.preempt(id);
  EXPECT_EQ(r.state().lookup(id), 0);
  ASSERT_TRUE(r.run(id, 13));
  EXPECT_EQ(r.state().counters().recomputed_tokens, 12);
}

TEST(ReplicaPreemption, SwappedWholeSequencesComeBack) {
  DrivenReplica r({.blocks = 5, .host_blocks = 3});
  const RequestId id = r.arrive_and_run(12, 9, {1, 2, 3, 4});
  r.preempt(id, Preemption::kSwap);
  EXPECT_EQ(r.state().counters().swaps, 1U);
  const RequestId other = r.arrive_and_run(8, 9);
  EXPECT_FALSE(r.state().try_swap_in(id, 1)) << "4 blocks for 13 tokens, 3 free";
  r.check();
  r.preempt(other, Preemption::kSwap);
  EXPECT_EQ(r.state().counters().recompute_fallbacks, 1U) << "host memory is full";
  ASSERT_TRUE(r.state().try_swap_in(id, 1));
  r.check();
  r.state().finish_swap_in(id, Time());
  ASSERT_TRUE(r.run(id, 1));
  EXPECT_EQ(r.state().info(id).computed_tokens, 13);
}

// Card 6.1: 40 tokens in one piece. 16 + 20 leave a hole of 4.
TEST(ReplicaContiguous, ReservesWholeRanges) {
  DrivenReplica r({.blocks = 10, .prefix_caching = false, .is_contiguous = true});
  const RequestId a = r.arrive(10, 6), b = r.arrive(15, 5), c = r.arrive(4, 4);
  EXPECT_FALSE(r.state().try_allocate(a, 1)) << "nothing is reserved";
  ASSERT_TRUE(r.state().try_reserve(a, 16));
  r.check();
  ASSERT_TRUE(r.state().try_reserve(b, 20));
  r.check();
  EXPECT_FALSE(r.state().try_reserve(c, 8));
  r.check();
  EXPECT_EQ(std::tuple(r.state().free_blocks(), r.state().memory().wasted_tokens()), std::tuple(1, 36));
  EXPECT_FALSE(r.state().try_allocate(a, 17));
  ASSERT_TRUE(r.run(a, 10));
  EXPECT_EQ(r.state().memory().wasted_tokens(), 26);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(r.run(a, 1));
  EXPECT_EQ(r.state().free_blocks(), 5) << "it has left: 16 + 4 tokens are free";
  EXPECT_EQ(r.state().memory().external_fragmentation_ppm(), 200'000);
  EXPECT_FALSE(r.state().try_reserve(c, 17)) << "20 are free, in two pieces";
  ASSERT_TRUE(r.state().try_reserve(c, 4));
  EXPECT_EQ(r.request(c).reserved_start, 36) << "the smallest hole that fits";
  EXPECT_EQ(r.state().memory().external_fragmentation_ppm(), 0);
  r.check();
}

TEST(ReplicaContiguous, PreemptionGivesTheRangeBack) {
  DrivenReplica r({.blocks = 10, .prefix_caching = false, .is_contiguous = true});
  const RequestId a = r.arrive(10, 6);
  ASSERT_TRUE(r.state().try_reserve(a, 40));
  ASSERT_TRUE(r.run(a, 10));
  EXPECT_EQ(std::tuple(r.state().free_blocks(), r.state().memory().external_fragmentation_ppm()), std::tuple(0, 0));
  r.preempt(a);
  EXPECT_EQ(std::tuple(r.state().free_blocks(), r.state().memory().wasted_tokens()), std::tuple(10, 0));
  ASSERT_TRUE(r.state().try_reserve(a, 16));
  ASSERT_TRUE(r.run(a, 11));
  EXPECT_EQ(r.state().counters().recomputed_tokens, 10);
}

TEST(ReplicaState, RefusesWhatCanNeverRun) {
  DrivenReplica r({.blocks = 5});
  const auto refused = [&](std::int32_t prompt, std::int32_t output) {
    r.state().receive(DrivenReplica::request_of(prompt, output, {}), Time());
    const bool was = !r.state().outbox().empty();
    r.state().outbox().clear();
    r.check();
    return was;
  };
  EXPECT_FALSE(refused(20, 1)) << "the last emitted token is never computed";
  EXPECT_TRUE(refused(21, 1));
  EXPECT_TRUE(refused(20, 2));
  DrivenReplica long_memory({.blocks = 100});
  long_memory.state().receive(DrivenReplica::request_of(199, 2, {}), Time());
  ASSERT_EQ(long_memory.state().outbox().size(), 1U);
  EXPECT_STREQ(long_memory.state().outbox()[0].reason, "longer than max_model_len");
}

TEST(ReplicaState, DrainListsWhatIsStillHere) {
  DrivenReplica r({.blocks = 8});
  const RequestId id = r.arrive(4, 4);
  r.arrive(4, 4);
  ASSERT_TRUE(r.run(id, 4));
  std::vector<RequestRecord> unfinished;
  r.state().drain(unfinished);
  ASSERT_EQ(unfinished.size(), 2U);
  EXPECT_EQ(unfinished[0].outcome, Outcome::kUnfinished);
  EXPECT_EQ(std::tuple(unfinished[0].output_tokens, unfinished[1].output_tokens), std::tuple(1, 0));
}

}  // namespace
}  // namespace kvlab
