#include "kernels/device/cuda/launch.cuh"
#include "policies/kv/scorer/standardize/standardize.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kEach = 16, kChunk = kThreads * kEach;

// A pool's scores in chunks, a block each. Every block adds the doubles of partial [pools, chunks] in the same order.
struct Pools {
  const std::int64_t* first;  // [pools + 1]
  float* scores;
  double *sums, *squares;  // [pools, chunks]
  int chunks;
};

__device__ __forceinline__ double add_partials(const double* partial, int chunks, double* shared) {
  double sum = 0;
  for (int i = threadIdx.x; i < chunks; i += kThreads) sum += partial[i];
  return block_sum(sum, shared);
}

// Pass 0: sums. 1: squares around the mean. 2: the result.
template <int Pass>
__global__ void __launch_bounds__(kThreads) standardize(Pools a) {
  KVLAB_SHARED(double, shared, 33);
  const int pool = blockIdx.x / a.chunks, chunk = blockIdx.x % a.chunks;
  const std::int64_t begin = a.first[pool], n = a.first[pool + 1] - begin, from = std::int64_t{chunk} * kChunk;
  const std::int64_t at = std::int64_t{pool} * a.chunks;
  if (Pass == 2 && from >= n) return;
  double mean = 0, deviation = 0;
  if constexpr (Pass > 0) mean = n > 0 ? add_partials(a.sums + at, a.chunks, shared) / static_cast<double>(n) : 0;
  if constexpr (Pass > 1) deviation = n > 1 ? sqrt(add_partials(a.squares + at, a.chunks, shared) / static_cast<double>(n - 1)) : 0;
  double sum = 0;
#pragma unroll 4
  for (int j = 0; j < kEach; ++j) {
    const std::int64_t i = from + j * kThreads + threadIdx.x;
    if (i >= n) break;
    const double x = static_cast<double>(a.scores[begin + i]) - mean;
    if constexpr (Pass == 2)
      a.scores[begin + i] = deviation > 0 ? static_cast<float>(x / deviation) : 0.0F;
    else
      sum += Pass == 0 ? x : x * x;
  }
  if constexpr (Pass < 2) {
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) (Pass == 0 ? a.sums : a.squares)[at + chunk] = sum;
  }
}

}  // namespace

void run_cuda(const Standardize& a, CudaContext& cuda) {
  std::vector<std::int64_t> first;
  std::int64_t longest = 0;
  for (std::int32_t p = 0; p <= a.num_pools; ++p) {
    first.push_back(a.first[p * a.rows_per_pool]);
    if (p > 0 && first.back() - first[first.size() - 2] > longest) longest = first.back() - first[first.size() - 2];
  }
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t chunks = ceil_div(longest, kChunk), blocks = a.num_pools * chunks;
  const Pools pools{cuda.upload(first.data(), static_cast<std::int64_t>(first.size())), a.scores, cuda.scratch<double>(blocks),
                    cuda.scratch<double>(blocks), static_cast<int>(chunks)};
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads)};
  launch("standardize", cuda, shape, standardize<0>, pools);
  launch("standardize", cuda, shape, standardize<1>, pools);
  launch("standardize", cuda, shape, standardize<2>, pools);
}

}  // namespace kvlab
