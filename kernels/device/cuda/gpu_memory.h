#pragma once

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// In cuda::allocate(): fewer than `bytes` are free; `bytes` 0: other calls.
class GpuMemoryError : public CudaError {
 public:
  GpuMemoryError(const std::string& what, std::int64_t bytes_) : CudaError(what), bytes(bytes_) {}
  std::int64_t bytes;
};

// cuda::allocate_pinned(); freeing GPU memory does not help.
class PinnedMemoryError : public CudaError {
 public:
  using CudaError::CudaError;
};

namespace cuda {
std::int64_t free_bytes();  // on the current GPU, shared with other programs
// Emulated: fills it with NaN.
void begin_scratch(void* p, std::int64_t bytes);
}  // namespace cuda

}  // namespace kvlab
