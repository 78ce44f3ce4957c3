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

// Outputs come in order.
class StepLane {
 public:
  struct Output {
    Picoseconds start{}, end{};
  };
  virtual ~StepLane() = default;
  // Time 0.
  virtual void start() = 0;
  [[nodiscard]] virtual Picoseconds now() = 0;
  // May return a tenth of a second early.
  virtual void wait_until(Picoseconds at) = 0;
  // `nominal`: the duration on a made-up clock.
  virtual void submit(StepJob job, Picoseconds nominal) = 0;
  // Waits for the oldest job. Rethrows its exception.
  virtual Output wait_output() = 0;
};

// On its thread, in real time. `stays_awake`: all cores spin between jobs, since woken cores are slow.
std::unique_ptr<StepLane> make_thread_lane(StepExecutor& executor, bool stays_awake);
// In the caller's thread, on the nominal clock; for tests.
std::unique_ptr<StepLane> make_nominal_lane(StepExecutor& executor);

}  // namespace kvlab
