#pragma once

#include <functional>
#include <memory>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// Records a function's launches once and repeats them with the same arguments (CUDA graphs). The function must have run before (scratch is
// allocated) and must not copy from or wait for the CPU; its memory must stay allocated. Throws CudaError for other work, and
// GpuMemoryError.
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
