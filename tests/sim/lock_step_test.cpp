// Data parallelism: ranks with a scheduler and memory of their own, which step together or share arrivals alone. Times by hand follow from
// LinearPrices: a step 5 us, a token 20 ns, a cached token of a decode row 37 ps.
#include <algorithm>

#include "base/random.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

struct GroupRun : Served {
  [[nodiscard]] std::vector<std::uint32_t> ranks() const {
    std::vector<std::uint32_t> all(records.requests.size());
    for (const RequestRecord& r : records.requests) all[r.number] = r.replica;
    return all;
  }
};

SimSetup group_setup(const std::string& scheduler, const std::string& parameters, std::uint32_t ranks = 2) {
  SimSetup setup = basic_setup(scheduler, parameters);
  setup.ranks = ranks;
  return setup;
}

GroupRun run(const SimSetup& setup, const std::vector<TraceRequest>& requests, bool keep_steps = true) {
  GroupRun result;
  result.records.keep_steps = keep_steps;
  result.summary = run_into(result.records, setup, requests);
  std::sort(result.records.requests.begin(), result.records.requests.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return result;
}

const char* const kEager = "{async_scheduling: false, largest_graph_tokens: 0}";

TEST(LockStep, TheFastRankWaits) {
  const GroupRun r = run(group_setup("vllm_v1", kEager), {request_at(0, 100, 2), request_at(0, 40, 2)});
  EXPECT_EQ(r.ranks(), (std::vector<std::uint32_t>{0, 1}));
  // Prompts: 5 us + 20 ns x 100. Then a token each: 5 us + 20 ns + 37 ps x 100.
  constexpr std::int64_t kPrompt = 7'000'000, kDecode = 5'000'000 + 20'000 + 3'700;
  ASSERT_EQ(r.records.steps.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const InFlightStep& step = r.records.steps[i];
    EXPECT_EQ(std::tuple(step.number, step.start.count(), step.end.count()),
              std::tuple(i / 2, i < 2 ? 0 : kPrompt, i < 2 ? kPrompt : kPrompt + kDecode));
  }
  EXPECT_EQ(r.summary.busy_frac, 1);
}

TEST(LockStep, AnIdleRankComputesOneTokenInEachStep) {
  const GroupRun r = run(group_setup("vllm_v1", kEager), {request_at(0, 20, 2)});
  constexpr std::int64_t kPrompt = 5'400'000, kDecode = 5'000'000 + 20'000 + 37 * 20;
  ASSERT_EQ(r.records.steps.size(), 2U) << "dummies are not steps of their own";
  EXPECT_EQ(r.summary.steps, 2U);
  EXPECT_EQ(r.records.steps[1].end.count(), kPrompt + kDecode);
  // 1,000 FLOPs a token at 1e12 FLOP/s: 20 and 1 of the request, 2 of the idle rank; both ranks are busy.
  EXPECT_DOUBLE_EQ(r.summary.mfu_frac, 23'000.0 / (2.0 * (kPrompt + kDecode)));
}

// Two steps, and before each of them both devices wait.
TEST(LockStep, AllRanksWaitForTheHost) {
  SimSetup setup = group_setup("vllm_v1", kEager);
  setup.make_cost_model = linear_cost({.host = Picoseconds{1'000'000}});
  const GroupRun r = run(setup, {request_at(0, 20, 2)});
  constexpr double kWaits = 2 * 2 * 1e6, kDevices = 5'400'000 + (5'020'000 + 37 * 20) + 2 * 5'020'000;
  EXPECT_NEAR(r.summary.step_shares[kCostParts][0], kWaits / (kWaits + kDevices), 1e-12);
}

// A decode row is cheap here, and a step dear: the dummy is what lasts longest.
TEST(LockStep, TheDummyIsPriced) {
  class DearPadding final : public StubCost {
   public:
    StepCost step(const StepShape& shape) override {
      StepCost cost;
      cost.add(CostPart::kLinear, Footing::kInside, Picoseconds{1'000'000} + Picoseconds{9'000'000} * shape.padding_rows);
      return cost;
    }
  };
  SimSetup setup = group_setup("vllm_v1", kEager);
  setup.make_cost_model = [] { return std::make_unique<DearPadding>(); };
  EXPECT_EQ(run(setup, {request_at(0, 1, 1)}).records.steps.front().end.count(), 10'000'000);
  setup.ranks = 1;
  EXPECT_EQ(run(setup, {request_at(0, 1, 1)}).records.steps.front().end.count(), 1'000'000);
}

// Rank 0: three prompts of 10, then three rows in the graph of 4. Rank 1: two of 400, which no graph has, then two rows.
TEST(LockStep, RowsArePaddedToTheLargestRank) {
  std::vector<TraceRequest> requests;
  for (const int prompt : {10, 400, 10, 400, 10}) requests.push_back(request_at(0, prompt, 2));
  const GroupRun r = run(group_setup("vllm_v1", "{async_scheduling: false}"), requests);
  EXPECT_EQ(r.ranks(), (std::vector<std::uint32_t>{0, 1, 0, 1, 0}));
  constexpr std::int64_t kPrompt = 5'000'000 + 20'000 * 800, kDecode = 5'000'000 + 20'000 * 4 + 37 * 800;
  EXPECT_EQ(r.records.steps.back().end.count(), kPrompt + kDecode);
  // Without graphs each rank has its own rows: 30 padded to 32, and 800. With graphs both compute 4.
  EXPECT_DOUBLE_EQ(r.summary.mfu_frac, 1000.0 * (32 + 800 + 4 + 4) / (2.0 * (kPrompt + kDecode)));
}

std::vector<TraceRequest> nine_and_five() {
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 9; ++i) requests.push_back(request_at(0, 10, i % 2 == 0 ? 100 : 1));
  for (const double us : {17.0, 17.5, 18.0, 18.5, 19.0}) requests.push_back(request_at(us * 1e-3, 10, 5));
  return requests;
}

using Ranks = std::vector<std::uint32_t>;

// Nine requests at once: the first of equal ranks, then the other. After the first step (6 us) rank 0 has five running and rank 1 none.
// Five more while a step runs (16.2 to 21.3 us), 4 x waiting + running of the ranks before each: (5, 0) (5, 4) (5, 8) (9, 8) (9, 12).
TEST(LockStep, ArrivalsGoToTheLeastFourTimesWaitingPlusRunning) {
  EXPECT_EQ(run(group_setup("vllm_v1", kEager), nine_and_five()).ranks(), (Ranks{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0}));
}

Ranks ranks_by(LoadBalance balance, const std::vector<TraceRequest>& requests) {
  SimSetup setup = group_setup("vllm_v1", kEager);
  setup.load_balance = balance;
  return run(setup, requests).ranks();
}

// A long prompt and short ones at once. By requests the ranks alternate. By tokens (all queued) the ranks have, before each prompt,
// (0, 0) (1000, 0) (1000, 10) (1000, 30) (1000, 60) (1000, 1060): the shorts go to rank 1 until it has more, and the last to rank 0.
TEST(LockStep, LoadIsBalancedByTokensOrRequests) {
  std::vector<TraceRequest> requests;
  for (const int prompt : {1000, 10, 20, 30, 1000, 5}) requests.push_back(request_at(0, prompt, 2));
  EXPECT_EQ(ranks_by(LoadBalance::kTotalTokens, requests), (Ranks{0, 1, 1, 1, 1, 0}));
  for (const LoadBalance balance : {LoadBalance::kVllm, LoadBalance::kTotalRequests, LoadBalance::kRoundRobin})
    EXPECT_EQ(ranks_by(balance, requests), (Ranks{0, 1, 0, 1, 0, 1}));
}

// Prompts of 1,000 and 10 run when the others come. In blocks of 16 rank 0 uses 63 or more and rank 1 two at most, so four prompts of 100
// go to rank 1: 32 + 400 tokens at most are below 1,008. By requests they alternate, since both ranks run one.
TEST(LockStep, TokensOfRunningRequestsAreThoseOfTheirBlocks) {
  std::vector<TraceRequest> requests = {request_at(0, 1000, 50), request_at(0, 10, 50)};
  for (int i = 0; i < 4; ++i) requests.push_back(request_at(0.04, 100, 2));
  EXPECT_EQ(ranks_by(LoadBalance::kTotalTokens, requests), (Ranks{0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(ranks_by(LoadBalance::kTotalRequests, requests), (Ranks{0, 1, 0, 1, 0, 1}));
}

// 4 x waiting + running: rank 0 runs five, so its (5) exceeds one that waits on rank 1 (4). waiting + running: (5) exceeds 0 to 4.
TEST(LockStep, WaitingRequestsCountOnceByTotalRequests) {
  const Ranks ranks = ranks_by(LoadBalance::kTotalRequests, nine_and_five());
  EXPECT_EQ(Ranks(ranks.begin() + 9, ranks.end()), (Ranks{1, 1, 1, 1, 1}));
}

TEST(LockStep, LimitsArePerRank) {
  SimSetup setup = group_setup("vllm_v1", "{max_num_seqs: 1, budget_tokens: 60, async_scheduling: false, largest_graph_tokens: 0}");
  setup.memory.num_blocks = 4;  // of 16 tokens: one such request
  const GroupRun r = run(setup, {request_at(0, 60, 3), request_at(0, 60, 3), request_at(0, 60, 3)});
  const std::vector<RequestRecord>& all = r.records.requests;
  EXPECT_EQ(r.summary.preemptions, 0U);
  EXPECT_EQ(all[0].first_token, kStart + Span(6'200));  // 5 us + 20 ns x 60
  EXPECT_EQ(all[1].first_token, all[0].first_token);
  EXPECT_EQ(all[2].scheduled, all[0].last_token);
  EXPECT_EQ(r.summary.kv_used_peak_frac, 1);
}

std::vector<TraceRequest> random_requests(std::size_t count, int copies) {
  std::vector<TraceRequest> requests;
  double at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto draw = [&](std::uint64_t step) { return Draw{3, Purpose::kTest, i, step, 0}; };
    at += draw(0).exponential(0.08);
    const auto prompt = static_cast<std::int32_t>(1 + draw(1).below(300)), output = static_cast<std::int32_t>(1 + draw(2).below(60));
    for (int copy = 0; copy < copies; ++copy) requests.push_back(request_at(at, prompt, output));
  }
  return requests;
}

// Every request twice on two ranks is every request once on one: the ranks are alike at all times, and none waits for the other.
TEST(LockStep, EqualRanksRunAsOneAlone) {
  struct Case {
    std::string scheduler, parameters;
    std::vector<Picoseconds> stages;
  };
  const std::vector<Picoseconds> stages{Picoseconds{2'000'000}, Picoseconds{3'000'000}};
  for (const Case& c : {Case{"vllm_v1", "{}", {}}, Case{"vllm_v1", kEager, {}}, Case{"sarathi", "{}", {}}, Case{"sglang", "{}", {}},
                        Case{"vllm_v1", "{}", stages}, Case{"vllm_v0", "{preemption: swap}", {}}, Case{"static", "{window_ms: 2}", {}}}) {
    SCOPED_TRACE(c.scheduler + " " + c.parameters);
    SimSetup setup = group_setup(c.scheduler, c.parameters);
    setup.make_cost_model = linear_cost({.stages = c.stages});
    setup.memory.num_blocks = 60;
    setup.memory.host_blocks = 30;
    const GroupRun twice = run(setup, random_requests(60, 2), false);
    setup.ranks = 1;
    const GroupRun once = run(setup, random_requests(60, 1), false);
    ASSERT_EQ(twice.records.requests.size(), 120U);
    for (std::size_t i = 0; i < 120; ++i) {
      const RequestRecord &a = twice.records.requests[i], &b = once.records.requests[i / 2];
      EXPECT_EQ(std::tuple(a.replica, a.scheduled, a.first_token, a.last_token, a.preemptions),
                std::tuple(i % 2, b.scheduled, b.first_token, b.last_token, b.preemptions));
    }
    EXPECT_EQ(std::tuple(twice.summary.steps, twice.summary.busy_frac, twice.summary.mfu_frac, twice.summary.kv_used_mean_frac),
              std::tuple(2 * once.summary.steps, once.summary.busy_frac, once.summary.mfu_frac, once.summary.kv_used_mean_frac));
  }
}

// Replicas of two ranks: a router chooses the replica, and the rule above the rank. Samples and records have the number of the rank.
TEST(LockStep, ReplicasHaveRanks) {
  SimSetup setup = group_setup("vllm_v1", "{}");
  setup.num_replicas = 2;
  for (const char* router : {"round_robin", "least_outstanding", "prefix_affinity"}) {
    setup.make_dispatcher = policy<DispatcherRegistry>("dispatcher", router, "{}");
    const GroupRun a = run(setup, random_requests(80, 1), false), b = run(setup, random_requests(80, 1), true);
    EXPECT_EQ(a.ranks(), b.ranks());
    EXPECT_EQ(a.summary.latencies.completed, 80U);
    for (std::uint32_t rank = 0; rank < 4; ++rank) EXPECT_THAT(a.ranks(), ::testing::Contains(rank)) << router;
    EXPECT_EQ(a.records.samples.at(3).replica, 3U);
  }
}

// Ranks of a dense model: a request alone on its rank is not held up by the long prompt of the other, and steps are looked ahead.
TEST(LockStep, RanksWithoutExpertsDoNotWait) {
  SimSetup setup = group_setup("vllm_v1", kEager);
  setup.steps_together = false;
  const GroupRun r = run(setup, {request_at(0, 500, 2), request_at(0, 40, 2)});
  EXPECT_EQ(r.records.requests[0].first_token, kStart + Span(15'000));
  EXPECT_EQ(r.records.requests[1].first_token, kStart + Span(5'800));
  const GroupRun fast = run(setup, random_requests(100, 1), false);
  setup.fast_forward = false;
  const GroupRun slow = run(setup, random_requests(100, 1), false);
  for (std::size_t i = 0; i < 100; ++i) {
    const RequestRecord &a = fast.records.requests[i], &b = slow.records.requests[i];
    EXPECT_EQ(std::pair(a.last_token, a.replica), std::pair(b.last_token, b.replica));
  }
  EXPECT_LT(fast.summary.events, slow.summary.events);
}

}  // namespace
}  // namespace kvlab::testing
