#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// Time on the GPU between two points of a stream. All throw CudaError. Emulated: time on the CPU, for tests of callers.
class CudaTimer {
 public:
  CudaTimer();

  // Keeps the GPU busy for `seconds` (at most 0.1) with one thread, so that work queued after it does not wait for the CPU.
  void hold(double seconds, CudaStream stream);
  void start(CudaStream stream);
  void stop(CudaStream stream);
  // From start to stop; waits for stop.
  [[nodiscard]] double seconds() const;
  // Rate of the multiprocessors' clock during the last hold, which must be over; 0: not known.
  [[nodiscard]] double clock_ghz() const;

 private:
  struct State;
  struct Free {
    void operator()(State* s) const noexcept;
  };
  std::unique_ptr<State, Free> state_;
};

namespace cuda {
void copy_on_device(void* to, const void* from, std::int64_t bytes, CudaStream stream);
void launch_nothing(CudaStream stream);  // a kernel of one thread that does nothing
}  // namespace cuda

}  // namespace kvlab
