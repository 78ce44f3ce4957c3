// The serving loop over devices of two kinds: one that knows a step's times when it begins, and one that learns them when it ends.
#include "serving/fleet.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <numeric>

#include "tests/sim/sim_support.h"

namespace kvlab {
namespace {

using test::Recorder;
using test::request_at;
using test::VectorTrace;

Picoseconds step_time(const InFlightStep& step) {
  Picoseconds time{1'000'000'000};
  for (const StepEntry& entry : step.entries) time += entry.tokens * Picoseconds{10'000'000};
  return time;
}

// Steps one after another; copies end at once.
class FixedDevice final : public Device {
 public:
  FixedDevice(bool knows_times, std::vector<RequestEvent>& events, int& received)
      : knows_times_(knows_times), events_(events), received_(received) {}
  [[nodiscard]] Traits traits() const override {
    Traits traits;
    traits.wants_events = true;
    return traits;
  }
  void attach(ReplicaState&, const Scheduler&) override {}
  void on_receive(const TraceRequest&, RequestId) override { ++received_; }
  void on_event(const EventRecord& event) override { events_.push_back(event.event); }
  Picoseconds copy(const SwapCopy&, Picoseconds at) override { return at; }
  bool begin(InFlightStep& step, Picoseconds at) override {
    const Picoseconds start = std::max(free_at_, at);
    free_at_ = start + step_time(step);
    if (!knows_times_) return times_.push_back({start, free_at_}), false;
    step.start = start;
    step.end = free_at_;
    return true;
  }
  void finish(InFlightStep& step) override {
    step.start = times_.front().first;
    step.end = times_.front().second;
    times_.pop_front();
  }

 private:
  bool knows_times_;
  std::vector<RequestEvent>& events_;
  int& received_;
  Picoseconds free_at_;
  std::deque<std::pair<Picoseconds, Picoseconds>> times_;
};

struct FleetRun {
  ServingSummary summary;
  std::vector<RequestRecord> requests;
  std::vector<InFlightStep> steps;
  std::vector<RequestEvent> events;
  int received = 0;
};

HostSetup host_setup(const std::string& scheduler, const std::string& parameters, Span stop) {
  HostSetup setup;
  setup.make_scheduler = testing::policy<SchedulerRegistry>("scheduler", scheduler, parameters);
  setup.make_block_cache = testing::policy<BlockCacheRegistry>("block cache", "lru", "{}");
  setup.make_footprint = [] { return std::make_unique<KeepAll>(); };
  setup.memory.num_blocks = 60;
  setup.stop.after_time = stop;
  return setup;
}

FleetRun run(bool knows_times, const std::string& scheduler, const std::string& parameters, Span stop = {}) {
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(request_at(i * 2.5, 20 + i % 7 * 30, 5 + i % 5 * 9));
  requests.push_back(request_at(110, 5000, 10));  // larger than the memory
  VectorTrace trace(requests);
  HostSetup setup = host_setup(scheduler, parameters, stop);
  setup.memory.host_blocks = 30;
  FleetRun result;
  Recorder sink;
  sink.keep_steps = true;
  Clock clock;
  Fleet fleet(
      setup, [&](std::size_t) { return std::make_unique<FixedDevice>(knows_times, result.events, result.received); }, clock, trace, sink);
  result.summary = fleet.run();
  result.requests = sink.requests;
  result.steps = sink.steps;
  return result;
}

void expect_same(const FleetRun& a, const FleetRun& b) {
  ASSERT_EQ(a.requests.size(), b.requests.size());
  for (std::size_t i = 0; i < a.requests.size(); ++i) {
    const RequestRecord &one = a.requests[i], &other = b.requests[i];
    EXPECT_EQ(std::tuple(one.number, one.queued, one.first_token, one.last_token, one.preemptions),
              std::tuple(other.number, other.queued, other.first_token, other.last_token, other.preemptions));
  }
  EXPECT_EQ(std::tuple(a.events, a.received, a.summary.preemptions), std::tuple(b.events, b.received, b.summary.preemptions));
}

struct RowsOfStep {
  std::int64_t rows = 0, kv_tokens = 0, kv_squares = 0;
  std::int32_t kv_min = 1 << 30, kv_max = 0;
  Picoseconds end;
  void add(std::int32_t kv) {
    ++rows;
    kv_tokens += kv;
    kv_squares += std::int64_t{kv} * kv;
    kv_min = std::min(kv_min, kv);
    kv_max = std::max(kv_max, kv);
  }
  bool operator==(const RowsOfStep&) const = default;
};

enum class Rows : std::uint8_t { kEntries, kSums, kListed };

// Logs all rows of each step, and counts those of the decode group.
class RowsDevice final : public Device {
 public:
  RowsDevice(Rows rows, std::vector<RowsOfStep>& log, std::int64_t& grouped) : rows_(rows), log_(log), grouped_(grouped) {}
  [[nodiscard]] Traits traits() const override {
    Traits traits;
    traits.takes_decode_rows = rows_ != Rows::kEntries;
    traits.wants_each_row = rows_ == Rows::kListed;
    return traits;
  }
  void attach(ReplicaState&, const Scheduler&) override {}
  Picoseconds copy(const SwapCopy&, Picoseconds at) override { return at + Picoseconds{500'000'000}; }
  bool begin(InFlightStep& step, Picoseconds at) override {
    RowsOfStep all;
    const DecodeRows& group = step.decodes;
    if (rows_ == Rows::kSums && group.count > 0) all = {group.count, group.kv_tokens, group.kv_squares, group.kv_min, group.kv_max, {}};
    for (const std::int32_t kv : group.kv) all.add(kv);
    std::int64_t tokens = group.count;
    for (const StepEntry& entry : step.entries) {
      all.add(entry.kv_before);
      tokens += entry.tokens;
    }
    step.start = std::max(free_at_, at);
    step.end = all.end = free_at_ = step.start + Picoseconds{1'000'000'000} + tokens * Picoseconds{10'000'000};
    log_.push_back(all);
    grouped_ += group.count;
    return true;
  }

 private:
  Rows rows_;
  std::vector<RowsOfStep>& log_;
  std::int64_t& grouped_;
  Picoseconds free_at_;
};

struct RowsRun {
  std::vector<RowsOfStep> log;
  std::vector<RequestRecord> requests;
  std::int64_t grouped = 0;
};

struct SchedulerText {
  std::string name, parameters;
};

RowsRun run_rows(Rows rows, const SchedulerText& scheduler, std::int64_t blocks, bool has_hashes) {
  std::vector<TraceRequest> requests;
  std::vector<std::uint64_t> hashes(40);
  std::iota(hashes.begin(), hashes.end(), 1);
  for (int i = 0; i < 60; ++i) {
    requests.push_back(request_at(i * 2.5, 20 + i % 7 * 30, 1 + i % 9 * 11));
    if (!has_hashes) continue;  // of prompt and output
    requests.back().hash_tokens = 16;
    requests.back().hashes = std::span(hashes).first(static_cast<std::size_t>(20 + i % 7 * 30 + i % 9 * 11) / 16);
  }
  VectorTrace trace(requests);
  HostSetup setup = host_setup(scheduler.name, scheduler.parameters, {});
  setup.memory.num_blocks = blocks;
  setup.memory.prefix_caching = has_hashes;
  RowsRun result;
  Recorder sink;
  Clock clock;
  Fleet fleet(
      setup, [&](std::size_t) { return std::make_unique<RowsDevice>(rows, result.log, result.grouped); }, clock, trace, sink);
  fleet.run();
  result.requests = sink.requests;
  return result;
}

// With and without preemptions, at depth 1 and 2; tokens of the output have hashes or none.
TEST(Fleet, RowsOfTheDecodeGroupAreThoseOfEntries) {
  for (const SchedulerText& scheduler : std::initializer_list<SchedulerText>{{"vllm_v1", "{}"},
                                                                             {"vllm_v1", "{async_scheduling: false}"},
                                                                             {"vllm_v1", "{budget_tokens: 32, max_num_seqs: 9}"},
                                                                             {"vllm_v1", "{long_prefill_tokens: 24}"},
                                                                             {"sarathi", "{budget_tokens: 96}"},
                                                                             {"sarathi", "{budget_tokens: 48, version: decode_maximal}"},
                                                                             {"sglang", "{clip_tokens: 8, init_ratio: 0.1}"},
                                                                             {"sglang", "{overlap: false, clip_tokens: 1, init_ratio: 0}"},
                                                                             {"sglang", "{chunk_tokens: 64, mixed_chunk: true}"}}) {
    SCOPED_TRACE(scheduler.name + " " + scheduler.parameters);
    for (const std::int64_t blocks : {34, 60, 2000}) {
      for (const bool has_hashes : {false, true}) {
        const RowsRun entries = run_rows(Rows::kEntries, scheduler, blocks, has_hashes);
        EXPECT_EQ(entries.grouped, 0);
        for (const Rows rows : {Rows::kSums, Rows::kListed}) {
          const RowsRun grouped = run_rows(rows, scheduler, blocks, has_hashes);
          EXPECT_GT(grouped.grouped, 20);
          EXPECT_EQ(grouped.log, entries.log) << blocks << ' ' << has_hashes;
          ASSERT_EQ(grouped.requests.size(), entries.requests.size());
          for (std::size_t i = 0; i < entries.requests.size(); ++i)
            EXPECT_EQ(std::tuple(grouped.requests[i].last_token, grouped.requests[i].preemptions, grouped.requests[i].hit_tokens),
                      std::tuple(entries.requests[i].last_token, entries.requests[i].preemptions, entries.requests[i].hit_tokens));
        }
      }
    }
  }
}

// Pipelines of one and two steps, with preemption by recompute and by swap.
TEST(Fleet, TimesKnownAtTheBeginOrTheEndGiveTheSameRun) {
  for (const auto& [scheduler, parameters] :
       std::vector<std::pair<std::string, std::string>>{{"vllm_v0", "{preemption: swap}"},
                                                        {"vllm_v0", "{preemption: recompute}"},
                                                        {"vllm_v1", "{}"},
                                                        {"sarathi", "{}"},
                                                        {"sglang", "{clip_tokens: 1, init_ratio: 0}"}}) {
    SCOPED_TRACE(scheduler + " " + parameters);
    const FleetRun known = run(true, scheduler, parameters), learned = run(false, scheduler, parameters);
    expect_same(known, learned);
    const auto steps_of = [](const FleetRun& r) {
      return std::tuple(r.summary.steps, r.steps.size(), r.summary.busy_frac, r.summary.kv_used_mean_frac);
    };
    EXPECT_EQ(steps_of(known), steps_of(learned));
    const auto& latencies = known.summary.latencies;
    EXPECT_EQ(std::tuple(known.received, latencies.rejected, latencies.completed), std::tuple(40, 1U, 40U));
    EXPECT_GT(known.summary.preemptions, 0U) << "nothing was preempted, so nothing is shown of it";
  }
}

// A step that ends after the stop rule is not counted if its times are learned; if they are known, its time up to the stop is.
TEST(Fleet, StopsInTheMiddleOfAStep) {
  const FleetRun known = run(true, "vllm_v1", "{}", Span(50'300'000)), learned = run(false, "vllm_v1", "{}", Span(50'300'000));
  expect_same(known, learned);
  EXPECT_GT(known.summary.steps, learned.summary.steps);
  EXPECT_GT(known.summary.latencies.unfinished, 0U);
}

TEST(Fleet, ADeviceThatLearnsTimesMustFinishSteps) {
  class Forgetful final : public Device {
    void attach(ReplicaState&, const Scheduler&) override {}
    Picoseconds copy(const SwapCopy&, Picoseconds at) override { return at; }
    bool begin(InFlightStep&, Picoseconds) override { return false; }
  } device;
  InFlightStep step;
  EXPECT_THROW(device.finish(step), InternalError);
}

// The cap on the time with no request in progress, as AgentX has it, by hand: sessions of two requests with long pauses.

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
  const HostSetup setup = host_setup("vllm_v1", "{}", seconds(loop.stop_after_s));
  Recorder sink;
  Clock clock;
  FleetRun unused;
  Fleet fleet(
      setup, [&](std::size_t) { return std::make_unique<FixedDevice>(true, unused.events, unused.received); }, clock, trace, sink);
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

// All end together. The pauses of 100 and 104 s move together to 10 and 14 s; after the second of them, that of 130 s has 26 s left.
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
