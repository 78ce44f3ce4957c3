#include <algorithm>

#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "kernels/device/cuda/attend_row.cuh"

namespace kvlab {

namespace {

// A block per head of a list and query. The queries are the last of the list's keys.
__global__ void __launch_bounds__(kRowThreads) chosen_prefill(ChosenPrefill a, std::int64_t most_queries) {
  const std::int64_t heads = a.q_heads / a.num_lists, d = a.head_dim;
  const std::int64_t t = blockIdx.x % most_queries, h = blockIdx.x / most_queries, list = h / heads, keys = a.keys(list);
  if (t >= a.queries[list]) return;
  const std::int32_t* const index = a.index + a.first[list];
  const std::int64_t listed = a.first[list + 1] - a.first[list];
  const auto position = [&](std::int64_t j) -> std::int64_t {
    return j < a.head ? j : j < a.head + listed ? a.base + index[j - a.head] : a.tail + j - a.head - listed;
  };
  const std::int64_t last = keys - a.queries[list] + t, row = position(last) - a.kv_before;
  std::int64_t from = 0;
  if (a.window > 0)
    from = count_first(static_cast<std::int32_t>(last), [&](std::int32_t j) { return position(j) <= position(last) - a.window; });
  float* const out = a.out + (row * a.q_heads + h) * d;
  const float log_sum = attend_row(
      a.q + (row * a.q_heads + h) * d, {a.k, a.v, a.kv_heads, d}, h / (a.q_heads / a.kv_heads), last - from + 1,
      1.0F / sqrtf(static_cast<float>(d)), [&](std::int64_t j) { return position(from + j); }, [&](int c, float x) { out[c] = x; });
  if (a.log_sum != nullptr && threadIdx.x == 0) a.log_sum[row * a.q_heads + h] = log_sum;
}

__global__ void no_log_sums(float* log_sum, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (i < n) log_sum[i] = -INFINITY;
}

}  // namespace

void run_cuda(const ChosenPrefill& a, CudaContext& cuda) {
  check_row_channels("chosen_prefill", a.head_dim);
  const CudaContext::Frame frame(cuda);
  const std::int64_t rows = a.new_tokens * a.q_heads;
  cuda::fill(a.out, 0, rows * a.head_dim * 4, cuda.stream());
  if (a.log_sum != nullptr)
    launch("chosen_prefill", cuda, block_each(ceil_div<std::int64_t>(rows, kRowThreads)), no_log_sums, a.log_sum, rows);
  const std::int64_t most = *std::max_element(a.queries, a.queries + a.num_lists);
  ChosenPrefill on_gpu = a;
  on_gpu.first = cuda.upload(a.first, a.num_lists + 1), on_gpu.queries = cuda.upload(a.queries, a.num_lists);
  launch("chosen_prefill", cuda, block_each(a.q_heads * most), chosen_prefill, on_gpu, most);
}

}  // namespace kvlab
