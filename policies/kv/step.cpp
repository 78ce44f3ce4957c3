#include "policies/kv/step.h"

#include "kernels/tensor_memory.h"

namespace kvlab {

const TensorMemory& LayerStep::memory() const {
  static const TensorMemory in_cpu_memory;
  return tensors == nullptr ? in_cpu_memory : *tensors;
}

}  // namespace kvlab
