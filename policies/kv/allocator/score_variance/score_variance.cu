#include "kernels/device/cuda/download.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/allocator/score_variance/score_variance.h"

namespace kvlab {

namespace {

__global__ void __launch_bounds__(kRowThreads)
    variance_of_pools(const std::int64_t* first, const float* scores, std::int32_t rows_per_pool, bool entropy, float* out) {
  KVLAB_SHARED(double, shared, 33);
  const std::int64_t begin = first[std::int64_t{blockIdx.x} * rows_per_pool], end = first[std::int64_t{blockIdx.x + 1} * rows_per_pool];
  double sum = 0, sum_sq = 0, count = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kRowThreads) {
    const double x = scores[i];
    if (!(x - x == 0)) continue;  // not finite
    count += 1;
    if (entropy && x <= 0) continue;
    sum += x, sum_sq += entropy ? x * log(x) : x * x;
  }
  sum = block_sum(sum, shared), sum_sq = block_sum(sum_sq, shared), count = block_sum(count, shared);
  const double mean = count == 0 ? 0 : sum / count;
  if (threadIdx.x == 0 && entropy)
    out[blockIdx.x] = count < 2 || sum <= 0 ? 0.0F : static_cast<float>((log(sum) - sum_sq / sum) / log(count));
  if (threadIdx.x == 0 && !entropy) out[blockIdx.x] = count == 0 ? 0.0F : static_cast<float>(fmax(0.0, sum_sq / count - mean * mean));
}

}  // namespace

void run_cuda(const ScoreVariance& a, CudaContext& cuda) {
  if (a.num_pools == 0) return;
  const CudaContext::Frame frame(cuda);
  float* const out = cuda.scratch<float>(a.num_pools);
  launch("score_variance", cuda, block_each(a.num_pools), variance_of_pools,
         cuda.upload(a.first, std::int64_t{a.num_pools} * a.rows_per_pool + 1), a.scores, a.rows_per_pool, a.entropy, out);
  const std::vector<float> host = download(cuda, out, a.num_pools);
  for (std::int32_t p = 0; p < a.num_pools; ++p) *a.out[p] = host[static_cast<std::size_t>(p)];
}

}  // namespace kvlab
