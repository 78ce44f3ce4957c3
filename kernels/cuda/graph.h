#pragma once

#include <functional>
#include <memory>

#include "kernels/cuda/memory.h"

namespace kvlab {

// What a function launches on a context's stream, recorded once and launched again as a whole (CUDA graphs). Kernels get the same
// arguments each time, so the function must have run before (its scratch memory is there), must not copy from or wait for the host,
// and all memory that it used must stay. Throws CudaError: what cannot be recorded; GpuMemoryError: a graph takes memory of the GPU, some
// hundred bytes for each launch. Emulated: launches are noted down with their arguments, and done with them each time.
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
