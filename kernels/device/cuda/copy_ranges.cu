#include <cuda_runtime.h>

#include "kernels/device/cuda/check.cuh"
#include "kernels/device/cuda/copy_ranges.h"

namespace kvlab::cuda {

namespace {

void copy_singly(std::span<const CopyRange> ranges, CudaStream stream) {
  for (const CopyRange& r : ranges)
    check(cudaMemcpyAsync(r.to, r.from, static_cast<std::size_t>(r.bytes), cudaMemcpyDefault, stream), "copying a page");
}

#if CUDART_VERSION >= 12080
// False if the driver has no batches.
bool copy_batch(std::span<const CopyRange> ranges, CudaStream stream) {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> bytes;
  for (const CopyRange& r : ranges) to.push_back(r.to), from.push_back(r.from), bytes.push_back(static_cast<std::size_t>(r.bytes));
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t e = cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), ranges.size(), &attributes, &first, 1, stream);
#else
  std::size_t failed = 0;
  const cudaError_t e = cudaMemcpyBatchAsync(to.data(), const_cast<void**>(from.data()), bytes.data(), ranges.size(), &attributes, &first,
                                             1, &failed, stream);
#endif
  if (e == cudaErrorNotSupported || e == cudaErrorCallRequiresNewerDriver) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(e, "copying pages");
  return true;
}
#endif

}  // namespace

void copy_ranges(std::span<const CopyRange> ranges, CudaStream stream) {
  if (ranges.empty()) return;
#if CUDART_VERSION >= 12080
  if (ranges.size() > 1 && stream != nullptr && copy_batch(ranges, stream)) return;  // not on the default stream
#endif
  copy_singly(ranges, stream);
}

}  // namespace kvlab::cuda
