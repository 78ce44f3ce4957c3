#include "kernels/device/cuda/copy_ranges.h"

#include <cstring>
#include <vector>

#include "kernels/device/emulated/device_heap.h"
#include "kernels/device/emulated/stream.h"

namespace kvlab::cuda {

void copy_ranges(std::span<const CopyRange> ranges, CudaStream) {
  for (const CopyRange& r : ranges) {
    emulated::expect_on_gpu(r.to, "copying ranges");
    emulated::expect_on_gpu(r.from, "copying ranges");
  }
  emulated::enqueue([copies = std::vector(ranges.begin(), ranges.end())] {
    for (const CopyRange& r : copies) std::memcpy(r.to, r.from, static_cast<std::size_t>(r.bytes));
  });
}

}  // namespace kvlab::cuda
