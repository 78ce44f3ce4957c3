#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// GPU time between two points of a stream. Throws CudaError. Emulated: CPU time.
class CudaTimer {
 public:
  CudaTimer();

  // Keeps the GPU busy for `seconds` (at most 0.1) while work is queued.
  void hold(double seconds, CudaStream stream);
  void start(CudaStream stream);
  void stop(CudaStream stream);
  // Waits for stop.
  [[nodiscard]] double seconds() const;
  // During the last hold, after its end; 0: unknown.
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
void launch_nothing(CudaStream stream);
}  // namespace cuda

// Repeats launches with the same arguments (CUDA graphs). The function has run before and neither copies from nor waits for the CPU; its
// memory stays allocated. Throws CudaError for other work, and GpuMemoryError.
class CudaGraph {
 public:
  CudaGraph() = default;
  CudaGraph(CudaContext& cuda, const std::function<void()>& work);
  void launch(CudaContext& cuda) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kvlab
