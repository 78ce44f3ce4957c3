#include <algorithm>

#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "kernels/device/cuda/row_tools.cuh"

namespace kvlab {

namespace {

// [*, kv_heads, head_dim].
struct PromptKv {
  const float *k, *v;
  std::int64_t kv_heads, head_dim;
};

// Online softmax of a query over n keys, the j-th at position at(j), by a block: put(c, output) per channel. Returns the log of the
// denominator.
template <class At, class Put>
__device__ float attend_row(const float* q, const PromptKv& kv, std::int64_t kv_head, std::int64_t n, float scale, const At& at,
                            const Put& put) {
  KVLAB_SHARED(float, weights, kRowThreads);
  KVLAB_SHARED(float, shared, 33);
  const int d = static_cast<int>(kv.head_dim), c = static_cast<int>(threadIdx.x);
  const auto line = [&](const float* x, std::int64_t j) { return x + (at(j) * kv.kv_heads + kv_head) * d; };
  float top = -INFINITY, total = 0, out = 0;
  for (std::int64_t begin = 0; begin < n; begin += kRowThreads) {
    const std::int64_t j = begin + threadIdx.x;
    float z = -INFINITY;
    if (j < n) {
      const float* const key = line(kv.k, j);
      z = 0;
      for (int i = 0; i < d; ++i) z += q[i] * key[i];
      z *= scale;
    }
    const float higher = fmaxf(top, block_max(z, shared)), shrunk = expf(top - higher);
    const float weight = j < n ? expf(z - higher) : 0.0F;
    weights[threadIdx.x] = weight;
    total = total * shrunk + block_sum(weight, shared);
    out *= shrunk;
    const std::int64_t tile = n - begin < kRowThreads ? n - begin : kRowThreads;
    for (std::int64_t i = 0; c < d && i < tile; ++i) out += weights[i] * line(kv.v, begin + i)[c];
    top = higher;
    __syncthreads();  // before the next tile's weights
  }
  if (c < d) put(c, out / total);
  return top + logf(total);
}

// Throws CudaError.
void check_row_channels(const char* op, std::int64_t head_dim) {
  if (head_dim > kRowThreads) throw CudaError(std::string(op) + ": head_dim " + std::to_string(head_dim) + " is above 256");
}

// A block per head of a list and query.
__global__ void __launch_bounds__(kRowThreads) chosen_prefill(ChosenPrefill a, std::int64_t most_queries) {
  const std::int64_t heads = a.q_heads / a.num_lists, d = a.head_dim;
  const std::int64_t t = blockIdx.x % most_queries, h = blockIdx.x / most_queries, list = h / heads;
  if (t >= a.num_queries(list)) return;
  const std::int32_t* const index = a.index + a.first[list];
  const std::int64_t listed = a.first[list + 1] - a.first[list];
  const auto position = [&](std::int64_t j) -> std::int64_t {
    return j < a.head ? j : j < a.head + listed ? a.base + index[j - a.head] : a.tail + j - a.head - listed;
  };
  const std::int64_t last = a.last_key(list, t), row = position(last) - a.kv_before, end = a.corrects_to(row);
  std::int64_t from = 0;
  if (a.window > 0)
    from = count_first(static_cast<std::int32_t>(last), [&](std::int32_t j) { return position(j) <= position(last) - a.window; });
  const auto out = [&](std::int64_t i) { return a.out + (i * a.q_heads + h) * d; };
  const float log_sum = attend_row(
      a.q + (row * a.q_heads + h) * d, {a.k, a.v, a.kv_heads, d}, h / (a.q_heads / a.kv_heads), last - from + 1,
      1.0F / sqrtf(static_cast<float>(d)), [&](std::int64_t j) { return position(from + j); },
      [&](int c, float x) {
        const float difference = x - out(row)[c];
        if (end == row) out(row)[c] = x;
        for (std::int64_t i = row; i < end; ++i) out(i)[c] += difference;
      });
  if (a.log_sum != nullptr && threadIdx.x == 0) a.log_sum[row * a.q_heads + h] = log_sum;
}

__global__ void no_log_sums(float* log_sum, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (i < n) log_sum[i] = -INFINITY;
}

}  // namespace

void run_cuda(const ChosenPrefill& a, CudaContext& cuda) {
  check_row_channels(call(a).op.data(), a.head_dim);
  const CudaContext::Frame frame(cuda);
  const std::int64_t rows = a.new_tokens * a.q_heads;
  if (a.stride == 0) cuda::fill(a.out, 0, rows * a.head_dim * 4, cuda.stream());
  if (a.log_sum != nullptr)
    launch("chosen_prefill", cuda, block_each(ceil_div<std::int64_t>(rows, kRowThreads)), no_log_sums, a.log_sum, rows);
  std::int64_t most = 0;
  for (std::int64_t list = 0; list < a.num_lists; ++list) most = std::max(most, a.num_queries(list));
  ChosenPrefill on_gpu = a;
  on_gpu.first = cuda.upload(a.first, a.num_lists + 1), on_gpu.queries = cuda.upload(a.queries, a.num_lists);
  launch(call(a).op.data(), cuda, block_each(a.q_heads * most), chosen_prefill, on_gpu, most);
}

}  // namespace kvlab
