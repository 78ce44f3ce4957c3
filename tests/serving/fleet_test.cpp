// The serving loop over devices of two kinds: one that knows a step's times when it begins, and one that learns them when it ends.
#include "serving/fleet.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "base/config/params.h"
#include "policies/block_cache/block_cache.h"
#include "tests/memory_run.h"

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
  setup.make_scheduler = [&] {
    Params p = Params::from_text(parameters, "scheduler");
    return SchedulerRegistry::make(scheduler, p, "scheduler");
  };
  setup.make_block_cache = [] {
    Params p = Params::from_text("{}", "block cache");
    return BlockCacheRegistry::make("lru", p, "block cache");
  };
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
    EXPECT_EQ(a.requests[i].number, b.requests[i].number);
    EXPECT_EQ(a.requests[i].queued, b.requests[i].queued);
    EXPECT_EQ(a.requests[i].first_token, b.requests[i].first_token);
    EXPECT_EQ(a.requests[i].last_token, b.requests[i].last_token);
    EXPECT_EQ(a.requests[i].preemptions, b.requests[i].preemptions);
  }
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.received, b.received);
  EXPECT_EQ(a.summary.preemptions, b.summary.preemptions);
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
    EXPECT_EQ(known.summary.steps, learned.summary.steps);
    EXPECT_EQ(known.steps.size(), learned.steps.size());
    EXPECT_EQ(known.summary.busy_frac, learned.summary.busy_frac);
    EXPECT_EQ(known.summary.kv_used_mean_frac, learned.summary.kv_used_mean_frac);
    EXPECT_EQ(known.received, 40);
    EXPECT_EQ(known.summary.latencies.rejected, 1U);
    EXPECT_EQ(known.summary.latencies.completed, 40U);
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
