#pragma once

#include "kernels/cuda/memory.h"

namespace kvlab {

// What cuda::allocate() throws where there is not enough free memory for `bytes` more, and any other call that finds the GPU's memory full;
// `bytes` is 0 where it does not say how many it asked for.
class GpuMemoryError : public CudaError {
 public:
  GpuMemoryError(const std::string& what, std::int64_t bytes_) : CudaError(what), bytes(bytes_) {}
  std::int64_t bytes;
};

// What cuda::allocate_pinned() throws where the host has no such memory to give: nothing that is freed on the GPU would help.
class PinnedMemoryError : public CudaError {
 public:
  using CudaError::CudaError;
};

namespace cuda {
std::int64_t free_bytes();  // of the GPU in use, whoever uses the rest
// Called with scratch memory that is given out, maybe not for the first time. Emulated: fills it with NaN.
void begin_scratch(void* p, std::int64_t bytes);
}  // namespace cuda

}  // namespace kvlab
