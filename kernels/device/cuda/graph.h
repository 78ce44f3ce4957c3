#pragma once

#include <functional>
#include <memory>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

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
