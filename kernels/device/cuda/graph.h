#pragma once

#include <functional>
#include <memory>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// Repeats a function's launches with the same arguments (CUDA graphs). It must have run before, must not copy from or wait for the CPU; its
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
