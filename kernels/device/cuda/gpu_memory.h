#pragma once

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// Thrown by cuda::allocate() if fewer than `bytes` bytes are free, and, with `bytes` 0, by any other call that finds the GPU's memory full.
class GpuMemoryError : public CudaError {
 public:
  GpuMemoryError(const std::string& what, std::int64_t bytes_) : CudaError(what), bytes(bytes_) {}
  std::int64_t bytes;
};

// Thrown by cuda::allocate_pinned() if no pinned CPU memory is left; freeing GPU memory does not help.
class PinnedMemoryError : public CudaError {
 public:
  using CudaError::CudaError;
};

namespace cuda {
std::int64_t free_bytes();  // on the current GPU; other programs may use memory too
// Called with scratch memory that is handed out, new or reused. Emulated: fills it with NaN.
void begin_scratch(void* p, std::int64_t bytes);
}  // namespace cuda

}  // namespace kvlab
