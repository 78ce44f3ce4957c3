// The cap on the time with no request in progress, as AgentX has it, by hand: sessions of two requests with long pauses.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "serving/fleet.h"
#include "tests/sim/sim_support.h"

namespace kvlab {
namespace {

// Every step takes 1 ms.
class MillisecondDevice final : public Device {
 public:
  void attach(ReplicaState&, const Scheduler&) override {}
  Picoseconds copy(const SwapCopy&, Picoseconds at) override { return at; }
  bool begin(InFlightStep& step, Picoseconds at) override {
    step.start = std::max(free_at_, at);
    step.end = free_at_ = step.start + Picoseconds{1'000'000'000};
    return true;
  }
  void finish(InFlightStep&) override {}

 private:
  Picoseconds free_at_;
};

constexpr Span seconds(std::int64_t count) { return Span(count * 1'000'000'000); }

struct Loop {
  std::int64_t idle_cap_s = 0;
  std::int32_t users = 0;  // 0: one for each session
  std::int64_t think_s = 0, stop_after_s = 0;
};

// Sessions in a closed loop: each a request and a second one so many seconds after its end.
class PausedSessions final : public TraceSource {
 public:
  PausedSessions(std::vector<int> pauses_s, const Loop& loop) : pauses_s_(std::move(pauses_s)), loop_(loop) {}
  bool next(TraceRequest& request) override {
    if (given_ == 2 * pauses_s_.size()) return false;
    request = test::request_at(0, 10, 4);
    request.session = static_cast<std::int64_t>(given_ / 2);
    request.is_follow_up = given_ % 2 == 1;
    if (request.is_follow_up) request.delay = seconds(pauses_s_[given_ / 2]);
    ++given_;
    return true;
  }
  [[nodiscard]] bool keeps_hashes() const override { return true; }
  [[nodiscard]] ClosedLoop closed_loop() const override {
    return {.concurrency = loop_.users > 0 ? loop_.users : static_cast<std::int32_t>(pauses_s_.size()),
            .think_time = [think_s = loop_.think_s](std::uint64_t) { return seconds(think_s); },
            .idle_cap = seconds(loop_.idle_cap_s)};
  }
  [[nodiscard]] std::string skipped() const override { return "of the trace"; }

 private:
  std::vector<int> pauses_s_;
  Loop loop_;
  std::size_t given_ = 0;
};

struct IdleRun {
  std::map<std::uint64_t, RequestRecord> records;  // by number: 2 x session, and one more for its second request
  ServingSummary summary;
  [[nodiscard]] double start_s(std::uint64_t number) const { return to_s(records.at(number).arrival - kStart); }
  [[nodiscard]] double end_s(std::uint64_t number) const { return to_s(records.at(number).last_token - kStart); }
};

IdleRun run_paused(const std::vector<int>& pauses_s, const Loop& loop) {
  PausedSessions trace(pauses_s, loop);
  HostSetup setup;
  setup.stop.after_time = seconds(loop.stop_after_s);
  setup.make_scheduler = testing::policy<SchedulerRegistry>("scheduler", "vllm_v1", "{}");
  setup.make_block_cache = testing::policy<BlockCacheRegistry>("block cache", "lru", "{}");
  setup.make_footprint = [] { return std::make_unique<KeepAll>(); };
  setup.memory.num_blocks = 60;
  test::Recorder sink;
  Clock clock;
  Fleet fleet(
      setup, [](std::size_t) { return std::make_unique<MillisecondDevice>(); }, clock, trace, sink);
  IdleRun result;
  result.summary = fleet.run();
  for (const RequestRecord& r : sink.requests) result.records.emplace(r.number, r);
  return result;
}

TEST(IdleCap, WithoutOneEveryPauseIsAsInTheTrace) {
  const IdleRun run = run_paused({100, 130, 104}, {.idle_cap_s = 0});
  EXPECT_NEAR(run.start_s(1), run.end_s(0) + 100, 1e-9);
  EXPECT_NEAR(run.start_s(3), run.end_s(2) + 130, 1e-9);
  EXPECT_EQ(run.summary.skipped, "of the trace");
}

// All end at 4 ms. The pauses of 100 and 104 s move together to 10 and 14 s; after the second of them, that of 130 s has 26 s left.
TEST(IdleCap, ArrivalsToComeMoveEarlierTogether) {
  const IdleRun run = run_paused({100, 130, 104}, {.idle_cap_s = 10});
  const double idle_from = std::max({run.end_s(0), run.end_s(2), run.end_s(4)});
  EXPECT_NEAR(run.start_s(1), idle_from + 10, 1e-9);
  EXPECT_NEAR(run.start_s(5) - run.start_s(1), 4 + run.end_s(4) - run.end_s(0), 1e-9);
  EXPECT_NEAR(run.start_s(3), run.end_s(5) + 10, 1e-9);
  EXPECT_EQ(run.records.size(), 6U);
  const std::string cut = "of the trace; 2 pauses with no request in progress cut to 10 s, by ";
  ASSERT_EQ(run.summary.skipped.substr(0, cut.size()), cut) << run.summary.skipped;
  EXPECT_NEAR(std::stod(run.summary.skipped.substr(cut.size())), 130 - 10 - 4 - 10, 0.1);
}

TEST(IdleCap, NothingMovesWhileARequestIsInProgressOrThePauseIsShort) {
  const IdleRun run = run_paused({9, 8}, {.idle_cap_s = 10});
  EXPECT_NEAR(run.start_s(1), run.end_s(0) + 9, 1e-9);
  EXPECT_NEAR(run.start_s(3), run.end_s(2) + 8, 1e-9);
  EXPECT_EQ(run.summary.skipped, "of the trace");
}

// One user thinks 120 s between sessions: each next one begins 10 s after the end, and the end of arrivals counts on the clock that was
// cut.
TEST(IdleCap, ASessionAfterTheEndOfArrivalsMovesTooAndMayComeBeforeIt) {
  const IdleRun run = run_paused({1, 1, 1, 1, 1, 1}, {.idle_cap_s = 10, .users = 1, .think_s = 120, .stop_after_s = 40});
  ASSERT_EQ(run.records.size(), 8U);  // sessions begin at 0, 11, 22 and 33 s, and a fifth would at 44
  for (std::uint64_t session = 1; session < 4; ++session)
    EXPECT_NEAR(run.start_s(2 * session), run.end_s(2 * session - 1) + 10, 1e-9) << session;
}

// At 50 s the loop is idle. The user's next session would begin at 106 s, after the end of arrivals, the follow-up comes at 130 s.
TEST(IdleCap, TheFirstArrivalDecidesEvenIfItIsAfterTheEndOfArrivals) {
  const IdleRun run = run_paused({50, 130, 5, 5}, {.idle_cap_s = 10, .users = 2, .think_s = 56, .stop_after_s = 100});
  for (const auto& [number, record] : run.records) {
    double idle_from = 0;
    for (const auto& [other, earlier] : run.records)
      if (earlier.arrival < record.arrival) idle_from = std::max(idle_from, to_s(earlier.last_token - kStart));
    EXPECT_LE(to_s(record.arrival - kStart), idle_from + 10 + 1e-9) << number;
  }
  EXPECT_EQ(run.records.size(), 8U);
}

}  // namespace
}  // namespace kvlab
