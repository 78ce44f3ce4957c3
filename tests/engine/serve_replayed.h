#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/serve/engine_device.h"
#include "serving/fleet.h"
#include "tests/engine/serve_fixture.h"

// A run of the engine in real time, and the simulator's loop on the times that it took.
//
// Real time enters a run in two places: Clock::now(), which the loop asks when a plan may begin, and the start and end of each step.
// Arrivals take their place among the other events by the trace's times, whenever the thread came to look at them. So the values of
// Clock::now(), in order, and the times of the steps are all that a repetition needs.
namespace kvlab::test {

// "7:0+64 3:12+1": the number of each request, its tokens computed before, and those of the step.
inline std::string entries_of(const StepPlan& plan, const ReplicaState& state) {
  std::string text;
  for (const StepEntry& entry : plan.entries)
    text += fmt::format("{}{}:{}+{}", text.empty() ? "" : " ", state.table()[entry.request].number, entry.computed_before, entry.tokens);
  return text;
}

// All that a run delivers, in text that can be compared.
struct RunLog final : RunSink {
  void request(const RequestRecord& r) override { requests.push_back(r); }
  [[nodiscard]] bool wants_steps() const override { return true; }
  void step(const InFlightStep& s, const ReplicaState& state) override {
    steps.push_back({s.planned, s.start, s.end, entries_of(s, state)});
  }
  void event(const EventRecord& e) override {
    events.push_back(fmt::format("{} ns, request {}: {}", ns(e.at - kStart), e.request, static_cast<int>(e.event)));
  }

  struct Step {
    Picoseconds planned{}, start{}, end{};
    std::string entries;
    bool operator==(const Step&) const = default;
  };
  std::vector<Step> steps;
  std::vector<std::string> events;
  std::vector<RequestRecord> requests;
};

struct ClockReading {
  Picoseconds asked{}, given{};
};

// The lane's clock, whose readings are kept.
class RecordedClock final : public Clock {
 public:
  explicit RecordedClock(std::vector<ClockReading>& readings) : lane_({}), readings_(readings) {}
  void start(StepLane& lane) { lane_.start(lane); }
  void reach(Picoseconds at) override { lane_.reach(at); }
  [[nodiscard]] Picoseconds now(Picoseconds at) override {
    readings_.push_back({at, lane_.now(at)});
    return readings_.back().given;
  }

 private:
  LaneClock lane_;
  std::vector<ClockReading>& readings_;
};

struct MeasuredRun {
  RunLog log;
  std::vector<ClockReading> readings;
  ServingSummary summary;
};

// As serve() does it.
inline MeasuredRun measured_run(const ServeSetup& setup, const std::vector<SomeRequest>& requests) {
  MeasuredRun run;
  EngineDevice* device = nullptr;
  const MakeDevice make_device = [&](std::size_t /*pool*/) {
    auto made = std::make_unique<EngineDevice>(setup);
    device = made.get();
    return made;
  };
  RecordedClock clock(run.readings);
  SomeTrace trace(requests);
  Fleet fleet(setup, make_device, clock, trace, run.log);
  clock.start(device->lane());
  run.summary = fleet.run();
  device->end();
  return run;
}

// The first place at which a repetition is not what was recorded; "" until there is one. From then on nothing recorded is used.
struct Deviation {
  std::string first;
  void note(std::string text) {
    if (first.empty()) first = std::move(text);
  }
  [[nodiscard]] bool is_found() const { return !first.empty(); }
};

class ReplayedClock final : public Clock {
 public:
  ReplayedClock(const std::vector<ClockReading>& readings, Deviation& deviation) : readings_(readings), deviation_(deviation) {}
  [[nodiscard]] Picoseconds now(Picoseconds at) override {
    if (deviation_.is_found()) return at;
    if (next_ < readings_.size() && readings_[next_].asked == at) return readings_[next_++].given;
    deviation_.note(fmt::format("question {} to the clock is about {} ps", next_, at.count()));
    return at;
  }

 private:
  const std::vector<ClockReading>& readings_;
  Deviation& deviation_;
  std::size_t next_ = 0;
};

// Its steps take the recorded times; after a deviation, a made-up one.
class ReplayedDevice final : public Device {
 public:
  ReplayedDevice(const std::vector<RunLog::Step>& steps, Deviation& deviation) : steps_(steps), deviation_(deviation) {}
  void attach(ReplicaState& state, const Scheduler& /*scheduler*/) override { state_ = &state; }
  // As on the engine's device, where a later step finds every copy done.
  Picoseconds copy(const SwapCopy& /*copy*/, Picoseconds at) override { return at; }
  bool begin(InFlightStep& step, Picoseconds at) override {
    const std::string entries = entries_of(step, *state_);
    const bool is_same = next_ < steps_.size() && steps_[next_].planned == step.planned && steps_[next_].entries == entries;
    if (!is_same) deviation_.note(fmt::format("step {} is {}, planned at {} ps", next_, entries, step.planned.count()));
    if (deviation_.is_found()) {
      step.start = std::max(at, last_end_);
      step.end = step.start + Picoseconds{1'000'000'000};
    } else {
      step.start = steps_[next_].start;
      step.end = steps_[next_++].end;
    }
    last_end_ = step.end;
    return true;
  }

 private:
  const std::vector<RunLog::Step>& steps_;
  Deviation& deviation_;
  const ReplicaState* state_ = nullptr;
  std::size_t next_ = 0;
  Picoseconds last_end_;
};

// Repeats a run. Returns the first deviation, "" if there is none.
inline std::string replay(const HostSetup& setup, const std::vector<SomeRequest>& requests, const MeasuredRun& measured, RunLog& log) {
  Deviation deviation;
  ReplayedClock clock(measured.readings, deviation);
  const MakeDevice make_device = [&](std::size_t /*pool*/) { return std::make_unique<ReplayedDevice>(measured.log.steps, deviation); };
  SomeTrace trace(requests);
  Fleet fleet(setup, make_device, clock, trace, log);
  fleet.run();
  return deviation.first;
}

}  // namespace kvlab::test
