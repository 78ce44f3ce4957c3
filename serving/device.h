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

struct StepTime {
  Picoseconds total{}, policy{};  // policy: the KV policy's part
};

// Device times of coming decode steps, one token per running request: base, base + slope, ...
struct DecodeTimes {
  Picoseconds base{}, slope{};
  Picoseconds host{};               // per step
  std::int64_t steps = 0;           // for which the times hold; 0: no look-ahead
  Picoseconds policy{};             // the KV policy's part of a step's device time
  std::vector<StepTime> each = {};  // if not empty: of these steps, instead of base, slope and policy
};

// Executes the steps and copies of a rank. SimDevice (sim/) prices them, EngineDevice (engine/serve/) runs them on a model.
class Device {
 public:
  struct Traits {
    int num_stages = 1;         // of the pipeline, each with its own step
    bool unnamed_rest = false;  // see Footprint::unnamed_rest
    bool wants_events = false;
    bool takes_decode_rows = false;  // StepPlan::decodes
    bool wants_each_row = false;     // DecodeRows::kv
  };

  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] virtual Traits traits() const { return {}; }
  // Called once, before all calls below. Both objects outlive the device.
  virtual void attach(ReplicaState& state, const Scheduler& scheduler) = 0;
  // Not called for refused requests.
  virtual void on_receive(const TraceRequest& /*request*/, RequestId /*r*/) {}
  // Before the plan's copies and step.
  virtual void on_event(const EventRecord& /*event*/) {}

  // Starts a copy between GPU and CPU memory at `at`; returns the time at which it counts as done.
  virtual Picoseconds copy(const SwapCopy& copy, Picoseconds at) = 0;
  // Starts a committed step, not before `at`. True: step.start and step.end are set; else finish() sets them. Ranks that step together all
  // begin (idle ones with an empty step) before finish() is called for each.
  virtual bool begin(InFlightStep& step, Picoseconds at) = 0;
  // Waits for the oldest step for which begin() returned false, and sets its times.
  virtual void finish(InFlightStep& step);

  // For the requests that run now; called between steps, with one stage.
  virtual DecodeTimes look_ahead() { return {}; }
  // The first n were carried out; the last ended at `end`.
  virtual void advance(std::int64_t /*n*/, Picoseconds /*end*/) {}

  // Seconds of a step with only `tokens` prompt tokens after `kv_before`; 0: unknown.
  [[nodiscard]] virtual double prefill_seconds(std::int64_t /*tokens*/, std::int64_t /*kv_before*/) { return 0; }
  // Seconds of a decode step of `rows` requests with `kv_tokens` in total; 0: unknown.
  [[nodiscard]] virtual double decode_seconds(std::int64_t /*rows*/, std::int64_t /*kv_tokens*/) { return 0; }

  // For errors on implausibly long steps: the first figure to check, with its file.
  [[nodiscard]] virtual std::string likely_cause() const { return "check the rates of the hardware"; }
};

using MakeDevice = std::function<std::unique_ptr<Device>(std::size_t pool)>;

class Clock {
 public:
  virtual ~Clock() = default;
  // Returns at `at` or later.
  virtual void reach(Picoseconds /*at*/) {}
  // `at`: time of the event that is being handled.
  [[nodiscard]] virtual Picoseconds now(Picoseconds at) { return at; }
};

}  // namespace kvlab
