// The serving loop over devices of two kinds: one that knows a step's times when it begins, and one that learns them when it ends.
#include "serving/fleet.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

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

FleetRun run(bool knows_times, const std::string& scheduler, const std::string& parameters, Span stop = {}) {
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(request_at(i * 2.5, 20 + i % 7 * 30, 5 + i % 5 * 9));
  requests.push_back(request_at(110, 5000, 10));  // larger than the memory
  VectorTrace trace(requests);
  HostSetup setup;
  setup.make_scheduler = testing::policy<SchedulerRegistry>("scheduler", scheduler, parameters);
  setup.make_block_cache = testing::policy<BlockCacheRegistry>("block cache", "lru", "{}");
  setup.make_footprint = [] { return std::make_unique<KeepAll>(); };
  setup.memory.num_blocks = 60;
  setup.memory.host_blocks = 30;
  setup.stop.after_time = stop;
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

}  // namespace
}  // namespace kvlab
