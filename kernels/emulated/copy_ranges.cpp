#include "kernels/cuda/copy_ranges.h"

#include <cstring>

namespace kvlab::cuda {

void copy_ranges(std::span<const CopyRange> ranges, CudaStream) {
  for (const CopyRange& r : ranges) std::memcpy(r.to, r.from, static_cast<std::size_t>(r.bytes));
}

}  // namespace kvlab::cuda
