#pragma once

#include <cuda_runtime.h>

#include <source_location>
#include <string>
#include <string_view>

#include "kernels/device/cuda/gpu_memory.h"

namespace kvlab::cuda {

// Throws CudaError; GpuMemoryError where the GPU's memory is full, whatever was asked of the runtime. The runtime keeps an error until it
// is asked for it, and the next launch would report it again: it is taken out first.
inline void check(cudaError_t e, std::string_view what, std::source_location at = std::source_location::current()) {
  if (e == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  const std::string text =
      std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": " + std::string(what) + ": " + cudaGetErrorString(e);
  if (e == cudaErrorMemoryAllocation) throw GpuMemoryError(text, 0);
  throw CudaError(text);
}

// Ignores the error of a release, and clears it so that the next launch does not report it.
inline void drop(cudaError_t e) noexcept {
  if (e != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace kvlab::cuda
