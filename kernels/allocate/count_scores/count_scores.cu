#include "kernels/allocate/count_scores/count_scores.h"
#include "kernels/allocate/count_scores/leading_mass.cuh"
#include "kernels/device/cuda/over_rows.cuh"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kEach = 16;

// `count` is 0 before.
__global__ void __launch_bounds__(kThreads)
    count_beyond(const std::int64_t* first, const float* scores, float limit, bool above, int chunks, std::int32_t* count) {
  const int row = blockIdx.x / chunks;
  const std::int64_t begin = first[row] + std::int64_t{blockIdx.x % chunks} * kThreads * kEach, end = first[row + 1];
  if (begin >= end) return;
  std::int32_t mine = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const std::int64_t i = begin + j * kThreads + threadIdx.x;
    if (i < end && (above ? scores[i] > limit : scores[i] >= limit)) ++mine;
  }
  mine = warp_sum(mine);
  if (lane_index() == 0 && mine > 0) atomicAdd(&count[row], mine);
}

// One block per row.
__global__ void __launch_bounds__(kMassThreads)
    count_mass(const std::int64_t* first, const float* scores, double share, std::int32_t* count) {
  KVLAB_SHARED(double, sums, kMassThreads + 1);
  KVLAB_SHARED(std::int32_t, found, 1);
  const std::int64_t begin = first[blockIdx.x], n = first[blockIdx.x + 1] - begin;
  const std::int32_t counted = leading_mass(scores + begin, n, share, sums, found);
  if (threadIdx.x == 0) count[blockIdx.x] = counted == 0 && n > 0 ? 1 : counted;
}

}  // namespace

void run_cuda(const CountScores& a, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  const auto chunks = static_cast<int>(ceil_div(longest_row(a.first, a.num_rows), kThreads * kEach));
  auto* const count = cuda.scratch<std::int32_t>(a.num_rows);
  const std::int64_t* const first = cuda.upload(a.first, a.num_rows + 1);
  cuda::fill(count, 0, 4LL * a.num_rows, cuda.stream());
  if (a.kind == CountScores::Kind::kLeadingMass)
    launch("count_scores", cuda, {dim3(static_cast<unsigned>(a.num_rows)), dim3(kMassThreads)}, count_mass, first, a.scores, a.limit,
           count);
  else
    launch("count_scores", cuda, {dim3(static_cast<unsigned>(std::int64_t{a.num_rows} * chunks)), dim3(kThreads)}, count_beyond, first,
           a.scores, static_cast<float>(a.limit), a.kind == CountScores::Kind::kAbove, chunks, count);
  cuda::to_host(a.count, count, 4LL * a.num_rows, cuda.stream());
  cuda.synchronize();
}

}  // namespace kvlab
