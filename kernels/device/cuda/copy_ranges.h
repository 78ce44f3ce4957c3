#pragma once

#include <span>

#include "kernels/device/cuda/memory.h"

namespace kvlab::cuda {

struct CopyRange {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t bytes = 0;
};

// Between GPU and pinned CPU memory, or within the GPU, in no order. Asynchronous.
void copy_ranges(std::span<const CopyRange> ranges, CudaStream stream);

}  // namespace kvlab::cuda
