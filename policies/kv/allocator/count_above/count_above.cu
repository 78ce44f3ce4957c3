#include "kernels/device/cuda/over_rows.cuh"
#include "policies/kv/allocator/count_above/count_above.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kEach = 16;

__global__ void __launch_bounds__(kThreads)
    count_above(const std::int64_t* first, const float* scores, float threshold, int chunks, std::int32_t* count) {
  const int row = blockIdx.x / chunks;
  const std::int64_t begin = first[row] + std::int64_t{blockIdx.x % chunks} * kThreads * kEach, end = first[row + 1];
  if (begin >= end) return;
  std::int32_t mine = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const std::int64_t i = begin + j * kThreads + threadIdx.x;
    if (i < end && scores[i] >= threshold) ++mine;
  }
  mine = warp_sum(mine);
  if (lane_index() == 0 && mine > 0) atomicAdd(&count[row], mine);
}

}  // namespace

void run_cuda(const CountAbove& a, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  const std::int64_t chunks = ceil_div(longest_row(a.first, a.num_rows), kThreads * kEach);
  auto* const count = cuda.scratch<std::int32_t>(a.num_rows);
  cuda::fill(count, 0, 4LL * a.num_rows, cuda.stream());
  launch("count_above", cuda, {dim3(static_cast<unsigned>(a.num_rows * chunks)), dim3(kThreads)}, count_above,
         cuda.upload(a.first, a.num_rows + 1), a.scores, a.threshold, static_cast<int>(chunks), count);
  cuda::to_host(a.count, count, 4LL * a.num_rows, cuda.stream());
  cuda.synchronize();
}

}  // namespace kvlab
