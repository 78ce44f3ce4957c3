#pragma once

#include <span>

#include "kernels/device/cuda/memory.h"

namespace kvlab::cuda {

struct CopyRange {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t bytes = 0;
};

// Copies between GPU memory and pinned CPU memory, or within GPU memory, by one driver call if available (CUDA 12.8), else one by one; in
// no particular order. Asynchronous.
void copy_ranges(std::span<const CopyRange> ranges, CudaStream stream);

}  // namespace kvlab::cuda
