#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/picoseconds.h"
#include "policies/scheduler/scheduler.h"
#include "serving/metrics.h"
#include "serving/replica_state.h"
#include "serving/step.h"

namespace kvlab {

// Device times of the decode steps to come, as long as every running request gains one token per step: base, base + slope, ...
struct DecodeTimes {
  Picoseconds base{}, slope{};
  Picoseconds host{};                         // host time per step
  std::int64_t steps = 0;                     // number of steps for which the times hold; 0: the device does not look ahead
  Picoseconds policy{};                       // of a step's device time, the KV policy's work
  std::vector<Picoseconds> each = {};         // if not empty: the times of these steps, which run along no line,
  std::vector<Picoseconds> each_policy = {};  // and of them the KV policy's work
};

// The part of a rank that a host of serving supplies: it executes steps and copies. SimDevice (sim/) prices them, EngineDevice
// (engine/serve/) runs them on a model.
class Device {
 public:
  struct Traits {
    int num_stages = 1;         // pipeline stages, each with a step of its own
    bool unnamed_rest = false;  // as Footprint::unnamed_rest
    bool wants_events = false;  // on_event() is called
  };

  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] virtual Traits traits() const { return {}; }
  // Called once, before any other call below. Both objects outlive the device.
  virtual void attach(ReplicaState& state, const Scheduler& scheduler) = 0;
  // A request entered the replica under the id `r`; refused requests are not reported.
  virtual void on_receive(const TraceRequest& /*request*/, RequestId /*r*/) {}
  // An event of a plan or of an output, in order, before the copies and the step of that plan.
  virtual void on_event(const EventRecord& /*event*/) {}

  // Starts a copy between GPU and CPU memory at `at`; returns the time from which the scheduler counts it as done.
  virtual Picoseconds copy(const SwapCopy& copy, Picoseconds at) = 0;
  // Starts a committed step, not before `at`. Returns true if step.start and step.end are set: the device knows them in advance.
  // If it returns false, finish() sets them. Ranks that step together begin one after the other, a rank without work with an empty step;
  // when all have begun, finish() is called for each.
  virtual bool begin(InFlightStep& step, Picoseconds at) = 0;
  // Waits for the oldest step for which begin() returned false and sets its times.
  virtual void finish(InFlightStep& step);

  // Times of uniform decode steps from the running requests as they are now; replicas call it between steps with one stage.
  virtual DecodeTimes look_ahead() { return {}; }
  // The first n of these steps were carried out, the last of them ends at `end`.
  virtual void advance(std::int64_t /*n*/, Picoseconds /*end*/) {}

  // Seconds of a step that computes `tokens` prompt tokens on top of `kv_before`, alone; 0: not known.
  [[nodiscard]] virtual double prefill_seconds(std::int64_t /*tokens*/, std::int64_t /*kv_before*/) { return 0; }
  // Seconds of a decode step of `rows` requests that hold `kv_tokens` in all; 0: not known.
  [[nodiscard]] virtual double decode_seconds(std::int64_t /*rows*/, std::int64_t /*kv_tokens*/) { return 0; }

  // For an error about implausibly long steps: the figure to check first, and its file.
  [[nodiscard]] virtual std::string likely_cause() const { return "check the rates of the hardware"; }
};

// pool: its number.
using MakeDevice = std::function<std::unique_ptr<Device>(std::size_t pool)>;

// The clock of a run: simulated time moves with the events, real time by itself.
class Clock {
 public:
  virtual ~Clock() = default;
  // Returns at `at` or later.
  virtual void reach(Picoseconds /*at*/) {}
  // The time now; an event of the instant `at` is being handled.
  [[nodiscard]] virtual Picoseconds now(Picoseconds at) { return at; }
};

}  // namespace kvlab
