#include <algorithm>

#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/memory.h"
#include "kernels/storage/page_copy/page_copy.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 8;     // vectors of 16 bytes per thread: 32 KiB per block
constexpr int kMostBlocks = 16;  // half a MiB

// Pages are one row of vectors.
__global__ void __launch_bounds__(kThreads) copy_pages(const uint4* from, uint4* to, const std::int32_t* from_page,
                                                       const std::int32_t* to_page, std::int64_t vectors, unsigned per_page) {
  for (std::int64_t first = std::int64_t{blockIdx.x} * kThreads * kInFlight; first < vectors;
       first += std::int64_t{gridDim.x} * kThreads * kInFlight) {
    const std::int64_t first_page = first / per_page;
    const auto begin = static_cast<unsigned>(first - first_page * per_page);
    std::int64_t source[kInFlight], target[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const unsigned at = begin + u * kThreads + threadIdx.x, page = at / per_page, in_page = at - page * per_page;
      const bool mine = first + u * kThreads + threadIdx.x < vectors;
      const std::int32_t read = mine ? from_page[first_page + page] : -1, write = mine ? to_page[first_page + page] : -1;
      source[u] = std::int64_t{read} * per_page + in_page;
      target[u] = read < 0 || write < 0 ? -1 : std::int64_t{write} * per_page + in_page;
    }
    uint4 x[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      if (target[u] >= 0) x[u] = load_streaming(from + source[u]);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      if (target[u] >= 0) __stcs(to + target[u], x[u]);
  }
}

void copy_by_kernel(const PageCopy& a, CudaContext& cuda) {
  if (a.page_bytes % 16 != 0 || !aligned16({a.from, a.to}))
    throw CudaError("copying pages of " + std::to_string(a.page_bytes) +
                    " bytes by a kernel: pages and pools must be multiples of 16 bytes; the copy engine takes any");
  const CudaContext::Frame frame(cuda);
  const std::int32_t* const from_page = a.lists_on_host ? cuda.upload(a.from_page, a.pages) : a.from_page;
  const std::int32_t* const to_page = a.lists_on_host ? cuda.upload(a.to_page, a.pages) : a.to_page;
  const std::int64_t vectors = a.pages * (a.page_bytes / 16);
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(vectors, kThreads * kInFlight), kMostBlocks);
  launch("copy_pages", cuda, blocks_of(blocks, kThreads), copy_pages, reinterpret_cast<const uint4*>(a.from),
         reinterpret_cast<uint4*>(a.to), from_page, to_page, vectors, static_cast<unsigned>(a.page_bytes / 16));
}

void copy_by_engine(const PageCopy& a, CudaContext& cuda) {
  if (!a.lists_on_host) throw CudaError("copying pages by the copy engine needs their lists in host memory");
  std::vector<cuda::CopyRange> ranges;
  for (const PageRun& run : page_runs(a))
    ranges.push_back({a.to + run.to * a.page_bytes, a.from + run.from * a.page_bytes, run.count * a.page_bytes});
  cuda::copy_ranges(ranges, cuda.stream());
}

}  // namespace

void run_cuda(const PageCopy& a, CudaContext& cuda) {
  if (a.pages == 0 || a.page_bytes == 0) return;
  if (chosen_method(a) == PageCopy::Method::kKernel)
    copy_by_kernel(a, cuda);
  else
    copy_by_engine(a, cuda);
}

}  // namespace kvlab
