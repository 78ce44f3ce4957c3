#pragma once

#include <functional>
#include <memory>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// The work that a function launches on a context's stream, recorded once and launched again as a whole (CUDA graphs). Kernels get the same
// arguments each time, so the function must have run before (its scratch memory is allocated), must not copy from or wait for the CPU, and
// its memory must stay allocated. Throws CudaError for work that cannot be recorded, and GpuMemoryError: a graph takes some hundred bytes
// of GPU memory per launch. Emulated: launches are recorded with their arguments and repeated.
class CudaGraph {
 public:
  CudaGraph() = default;
  CudaGraph(CudaContext& cuda, const std::function<void()>& work);
  [[nodiscard]] bool is_captured() const { return state_ != nullptr; }
  void launch(CudaContext& cuda) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kvlab
