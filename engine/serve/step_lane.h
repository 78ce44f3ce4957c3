#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/picoseconds.h"
#include "engine/serve/executor.h"

namespace kvlab {

// Steps one after another, and the clock of a run. Jobs are handed over, outputs come back in the same order.
class StepLane {
 public:
  struct Output {
    Picoseconds start{}, end{};
  };
  virtual ~StepLane() = default;
  // The run begins: time 0.
  virtual void start() = 0;
  [[nodiscard]] virtual Picoseconds now() = 0;
  // Returns at `at`, or earlier, but not by less than a tenth of a second.
  virtual void wait_until(Picoseconds at) = 0;
  // `nominal`: what the job takes on a made-up clock.
  virtual void submit(StepJob job, Picoseconds nominal) = 0;
  // Waits for the oldest job and returns its times. Rethrows an exception of the job.
  virtual Output wait_output() = 0;
};

// On a thread of its own, in real time. `stays_awake`: between jobs all cores wait busily. Cores that sleep come back slower, for longer
// than a step takes, and how much slower depends on the load; cores that are awake are as fast as a calibration found them.
std::unique_ptr<StepLane> make_thread_lane(StepExecutor& executor, bool stays_awake);
// In the caller's thread, on a clock that only steps move: for tests.
std::unique_ptr<StepLane> make_nominal_lane(StepExecutor& executor);

}  // namespace kvlab
