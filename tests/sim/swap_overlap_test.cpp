// Copies to CPU memory during steps, to the nanosecond. A step takes 1 ms, a block 2 ms on the link.
#include "tests/sim/random_runs.h"

namespace kvlab::testing {
namespace {

using Overlap = SwapSetup::Overlap;

SimSetup overlap_setup(Overlap overlap, std::int64_t num_blocks) {
  SimSetup setup = basic_setup("vllm_v1", "{async_scheduling: false, max_num_seqs: 1}");
  setup.make_order = policy<OrderRegistry>("order", "srpt", "{preemption: swap}");
  setup.make_cost_model = linear_cost(
      {.step = Picoseconds{1'000'000'000}, .token = {}, .kv_token = {}, .cell = std::int64_t{1} << 40, .op_byte = Picoseconds{1}});
  setup.memory.num_blocks = num_blocks;
  setup.memory.host_blocks = 100;
  setup.memory.block_bytes = 1000;
  setup.memory.prefix_caching = false;
  setup.memory.swap.overlap = overlap;
  setup.swap_link = {1e18, Span(2'000'000)};  // bytes take no time
  setup.timeline_interval = Span{0};
  return setup;
}

struct Ends {
  double short_first = 0, short_last = 0, long_last = 0;
};

double ms_of(Time at) { return to_s(at - kStart) * 1e3; }

void expect_near(const Ends& found, const Ends& expected) {
  EXPECT_NEAR(found.short_first, expected.short_first, 1e-3);
  EXPECT_NEAR(found.short_last, expected.short_last, 1e-3);
  EXPECT_NEAR(found.long_last, expected.long_last, 1e-3);
}

// Request 0 has emitted 11 of its tokens and holds 3 blocks at 11 ms, when request 1 of 5 tokens overtakes it. Its copy takes 6 ms.
Ends run_two(const SimSetup& setup, std::int32_t long_output = 100) {
  const auto [records, summary] = serve(setup, {request_at(0, 32, long_output), request_at(10.5, 16, 5)});
  EXPECT_EQ(summary.swaps, 1U);
  const RequestRecord &first = record_of(records, 0), &second = record_of(records, 1);
  return {ms_of(second.first_token), ms_of(second.last_token), ms_of(first.last_token)};
}

TEST(SwapOverlap, AStepWaitsForCopiesOutByDefault) {
  expect_near(run_two(overlap_setup(Overlap::kNone, 100)), {11 + 6 + 1, 22, 22 + 6 + 89});
}

// Request 1 continues at once. It is done at 16 ms, and the way back begins when the way out has ended, at 17 ms.
TEST(SwapOverlap, CopiesOutRunBesideSteps) {
  for (const Overlap overlap : {Overlap::kOut, Overlap::kAdaptive})
    expect_near(run_two(overlap_setup(overlap, 100)), {12, 16, 17 + 6 + 89});
}

// Its first step has its own block; its second one needs a block that is copied until 17 ms.
TEST(SwapOverlap, AStepWaitsForABlockThatItWritesTo) {
  const Ends some = run_two(overlap_setup(Overlap::kOut, 4), 33);
  EXPECT_NEAR(some.short_first, 12, 1e-3);
  EXPECT_NEAR(some.short_last, 17 + 4, 1e-3);
}

TEST(SwapOverlap, WithoutOtherBlocksNothingIsGained) {
  // All of memory: request 0 holds 9 blocks at 11 ms, and its copy takes 18 ms.
  const auto [records, summary] = serve(overlap_setup(Overlap::kOut, 9), {request_at(0, 127, 17), request_at(10.5, 16, 1)});
  EXPECT_EQ(summary.swaps, 1U);
  EXPECT_NEAR(ms_of(record_of(records, 1).first_token), 11 + 18 + 1, 1e-3);
}

// With another request running, the one that comes back is not waited for: its copy takes six steps.
TEST(SwapOverlap, AdaptiveWaitsForShortCopiesIn) {
  for (const std::int64_t call_us : {2000, 100}) {
    SimSetup setup = overlap_setup(Overlap::kAdaptive, 100);
    setup.make_scheduler = policy<SchedulerRegistry>("scheduler", "vllm_v1", "{async_scheduling: false, max_num_seqs: 2}");
    setup.swap_link.call_time = Span(call_us * 1000);
    // 0 and 1 run; 2 overtakes 1, the longest, at 11 ms, which comes back at 16 ms or when its copy out has ended.
    const auto [records, summary] = serve(setup, {request_at(0, 32, 60), request_at(0, 32, 100), request_at(10.5, 16, 5)});
    EXPECT_EQ(summary.swaps, 1U);
    // 17 + 6: the copy has ended at 23 ms, its 12th token comes at 24 ms; request 0 has none of it. Or both wait for 0.3 ms, in place of
    // a token.
    EXPECT_NEAR(ms_of(record_of(records, 0).last_token), call_us == 2000 ? 60 : 60.3, 1e-3);
    EXPECT_NEAR(ms_of(record_of(records, 1).last_token), call_us == 2000 ? 24 + 88 : 17.3 + 88, 1e-3);
  }
}

// Half of the bytes, and work in the step that goes out and in the one that comes back: 3 blocks of 2,000,000 bytes at 1 ps.
TEST(SwapCodec, TakesLinkMemoryAndSteps) {
  SimSetup setup = overlap_setup(Overlap::kNone, 100);
  setup.swap_link = {1e6, Span{0}};  // 1 ms for a block of 1,000 bytes
  EXPECT_NEAR(run_two(setup).short_first, 11 + 3 + 1, 1e-3);
  setup.memory.swap.codec = {500, {"quantize", 8, 2'000'000, 0}, {"dequantize", 8, 20'000'000, 0}};
  expect_near(run_two(setup), {11 + 1.5 + 1 + 0.006, 17.506, 17.506 + 1.5 + 89 + 0.06});
}

// At 30 ms request 2 overtakes request 1, which has 11 of the 12 blocks and 15 tokens to go, and takes its first 2 blocks from the store.
// The later one of these is the tenth that request 1 copies out: copies in, of 2 ms each, begin after 20 ms.
TEST(SwapOverlap, APrefixFromTheStoreWaitsForCopiesOutOfItsBlocks) {
  const Family family(1, 32);
  SimSetup setup = overlap_setup(Overlap::kOut, 12);
  setup.memory.prefix_caching = true;
  setup.store.block_tokens = 16;
  setup.store.make_eviction = policy<BlockCacheRegistry>("block cache", "lru", "{}");
  setup.store_blocks = 10;
  const auto [records, summary] = serve(setup, {family.at(0, 32, 5), request_at(15, 160, 30), family.at(29.5, 40, 5)});
  EXPECT_EQ(summary.swaps, 1U);
  const RequestRecord& last = record_of(records, 2);
  EXPECT_EQ(last.hit_tokens, 32);
  EXPECT_NEAR(ms_of(last.scheduled), 30 + 20 + 2 * 2, 1e-3);
}

// Runs in which swapped requests cross the link to CPU memory in few calls, or in part.

constexpr std::int64_t kRequests = 24;

struct SwapRun {
  RunSummary summary;
  Time last{};
};

// Memory for three requests; a call takes as long as some steps.
SwapRun run(SimSetup setup, const std::string& cache, std::int32_t group_blocks, bool keeps_copies, Span call_time) {
  setup.make_block_cache = policy<BlockCacheRegistry>("block cache", cache, "{}");
  setup.memory.num_blocks = 30;
  setup.memory.host_blocks = 200;
  setup.memory.prefix_caching = false;
  setup.memory.swap_group_blocks = group_blocks;
  setup.memory.keeps_host_copies = keeps_copies;
  setup.swap_link.call_time = call_time;
  setup.timeline_interval = Span{0};
  std::vector<TraceRequest> requests;
  for (std::int64_t i = 0; i < kRequests; ++i) requests.push_back(request_at(0.1 * static_cast<double>(i), 100, 120));
  const Served served = serve(setup, requests);
  EXPECT_EQ(served.summary.latencies.completed, static_cast<std::uint64_t>(kRequests));
  SwapRun result{served.summary};
  for (const RequestRecord& r : served.records.requests) result.last = std::max(result.last, r.last_token);
  return result;
}

SwapRun run_groups(std::int32_t group_blocks, Span call_time) {
  return run(basic_setup("vllm_v0", "{preemption: swap, watermark_frac: 0}"), "block_groups", group_blocks, false, call_time);
}

TEST(SwapGroups, FewerCallsEndSooner) {
  const SwapRun single = run_groups(1, Span(100'000)), grouped = run_groups(60, Span(100'000));
  EXPECT_GT(single.summary.swaps, 5U);
  EXPECT_LT(grouped.last, single.last);
}

// Without a cost per call, groups change nothing.
TEST(SwapGroups, TheGainIsTheCalls) {
  const SwapRun single = run_groups(1, Span{0}), grouped = run_groups(60, Span{0});
  EXPECT_GT(single.summary.swaps, 5U);
  EXPECT_EQ(single.summary.swaps, grouped.summary.swaps);
  EXPECT_EQ(single.last, grouped.last);
}

// Priorities that change every 5 steps send requests out again and again.
TEST(HostCopies, AreReusedByRequestsThatGoOutAgain) {
  const auto run_copies = [](bool keeps_copies) {
    SimSetup setup = basic_setup("vllm_v1", "{async_scheduling: false}");
    setup.make_order = policy<OrderRegistry>("order", "fastswitch_priority", "{frequency: 0.2}");
    return run(std::move(setup), "lru", 1, keeps_copies, Span(100'000));
  };
  const SwapRun all = run_copies(false), some = run_copies(true);
  EXPECT_GT(all.summary.swaps, static_cast<std::uint64_t>(2 * kRequests)) << "requests go out once or twice";
  // The runs differ in the requests that are swapped, but a swap takes less time.
  const auto time_per_swap = [](const SwapRun& r) { return to_s(r.last - kStart) / static_cast<double>(r.summary.swaps); };
  EXPECT_LT(time_per_swap(some), 0.95 * time_per_swap(all));
}

}  // namespace
}  // namespace kvlab::testing
