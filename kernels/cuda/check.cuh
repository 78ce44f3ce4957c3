#pragma once

#include <cuda_runtime.h>

#include <source_location>
#include <string>
#include <string_view>

#include "kernels/cuda/memory.h"

namespace kvlab::cuda {

// Throws CudaError. The runtime keeps an error until it is asked for it, and the next launch would report it again: it is taken out first.
inline void check(cudaError_t e, std::string_view what, std::source_location at = std::source_location::current()) {
  if (e == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw CudaError(std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": " + std::string(what) + ": " + cudaGetErrorString(e));
}

}  // namespace kvlab::cuda
