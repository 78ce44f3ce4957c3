// Runs in which swapped requests cross the link to CPU memory in few calls, or in part.
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

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
