#pragma once

#include <cuda_runtime.h>

#include <source_location>
#include <string>
#include <string_view>

#include "kernels/device/cuda/memory.h"

namespace kvlab::cuda {

// Throws CudaError, or GpuMemoryError if GPU memory is full. Clears the error for the next launch.
inline void check(cudaError_t e, std::string_view what, std::source_location at = std::source_location::current()) {
  if (e == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  const std::string text =
      std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": " + std::string(what) + ": " + cudaGetErrorString(e);
  if (e == cudaErrorMemoryAllocation) throw GpuMemoryError(text, 0);
  throw CudaError(text);
}

// Ignores and clears the error of a release.
inline void drop(cudaError_t e) noexcept {
  if (e != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace kvlab::cuda
