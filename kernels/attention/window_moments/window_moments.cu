#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/attention/window_moments/window_moments.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/token_walk.cuh"

namespace kvlab {

namespace {

constexpr int kThreads = 256;

struct Window {
  DeviceRows kv;               // one query head each
  const Queries* queries;      // [sequences]
  const float *sum, *squares;  // [kv.total]
  std::int32_t group;

  __device__ const Queries& queries_of(int row) const { return queries[row / kv.kv_heads]; }
  __device__ bool is_before(int row, std::int32_t i) const { return kv.position[kv.slot(row, i)] < queries_of(row).first_position; }
  __device__ float mean(int row, std::int64_t i) const { return sum[kv.first[row] + i] / static_cast<float>(queries_of(row).count); }
  __device__ float variance(int row, std::int64_t i) const {
    const std::int32_t w = queries_of(row).count;
    const std::int64_t at = kv.first[row] + i;
    return w > 1 ? fmaxf((squares[at] - sum[at] * mean(row, i)) / static_cast<float>(w - 1), 0.0F) : 0.0F;
  }
};

struct Score : Window {
  const std::int64_t* out_first;  // [rows of KV heads + 1]
  float gamma;
  float* scores;
  __device__ std::int64_t count(int row) const { return out_first[row + 1] - out_first[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    float score = 0;
    if (queries_of(row * group).count > 0 && is_before(row * group, static_cast<std::int32_t>(i)))
      for (int r = row * group; r < (row + 1) * group; ++r) score += (mean(r, i) + gamma * variance(r, i)) / static_cast<float>(group);
    scores[out_first[row] + i] = score;
  }
};

// spread [query heads]: variances over earlier tokens. A block per head.
__global__ void __launch_bounds__(kThreads) add_variances(Window a, double* spread) {
  KVLAB_SHARED(double, shared, 33);
  const int row = blockIdx.x;
  double sum = 0;
  for (std::int32_t i = threadIdx.x; i < a.kv.len[row] && a.queries_of(row).count > 0; i += kThreads)
    if (a.is_before(row, i)) sum += static_cast<double>(a.variance(row, i));
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) spread[row] = sum;
}

// entropy [query heads, most] over earlier tokens; a block per query. Weights are relative to the largest logit; e: their sum, e_before:
// over earlier tokens, ez_before: times relative logit. Entropy = (e_before log e - ez_before) / e.
struct Part {
  float top = -INFINITY, e = 0, e_before = 0, ez_before = 0;
};
__device__ __forceinline__ Part moved(const Part& p, float top) {
  if (p.top == -INFINITY) return {top, 0, 0, 0};
  const float shift = p.top - top, factor = expf(shift);
  return {top, p.e * factor, p.e_before * factor, factor * (p.ez_before + shift * p.e_before)};
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) measure_entropy(Window a, int most, double* entropy) {
  KVLAB_SHARED(float, q, kMostTokenDim);
  KVLAB_SHARED(float, shared, 33);
  const int row = blockIdx.x / most, t = blockIdx.x % most, d = a.kv.head_dim;
  const Queries queries = a.queries_of(row);
  if (t >= queries.count) return;
  const float scale = 1.0F / sqrtf(static_cast<float>(d));
  const float* const from = queries.data + (std::int64_t{t} * a.kv.kv_heads + row % a.kv.kv_heads) * d;
  for (int c = threadIdx.x; c < d; c += kThreads) q[c] = from[c] * scale;
  __syncthreads();
  const bool wide = d % 8 == 0 && reinterpret_cast<std::uintptr_t>(a.kv.k) % 16 == 0;
  Part part;
  for (std::int32_t i = threadIdx.x; i < a.kv.len[row]; i += kThreads) {
    const std::int64_t slot = a.kv.slot(row, i);
    const std::int32_t position = a.kv.position[slot];
    if (position > queries.first_position + t) break;  // positions ascend
    const T* const key = static_cast<const T*>(a.kv.k) + slot * d;
    float z = 0;
    for (int c = 0; c < d; c += 8) {
      float x[8];
      unpack_raw8(wide ? load_raw8<T, true>(key + c, 8) : load_raw8<T, false>(key + c, d - c), x);
#pragma unroll
      for (int j = 0; j < 8; ++j) z += c + j < d ? q[c + j] * x[j] : 0.0F;
    }
    if (z > part.top) part = moved(part, z);
    const float e = expf(z - part.top);
    part.e += e;
    if (position < queries.first_position) part.e_before += e, part.ez_before += e * (z - part.top);
  }
  const float top = block_reduce(part.top, -INFINITY, shared, [](float x, float y) { return fmaxf(x, y); });
  part = moved(part, top);
  const float e = block_sum(part.e, shared), before = block_sum(part.e_before, shared), ez = block_sum(part.ez_before, shared);
  if (threadIdx.x == 0) entropy[blockIdx.x] = e > 0 ? static_cast<double>((before * logf(e) - ez) / e) : 0.0;
}

// A thread per sequence.
struct Spread {
  const Queries* queries;
  const double *variances, *entropies;  // [query heads], [query heads, most]
  int heads, most;
  float *entropy, *variance;
  __device__ std::int64_t count(int) const { return 1; }
  __device__ void operator()(int s, std::int64_t) const {
    float sum = 0, of_variance = 0;
    for (int h = s * heads; h < (s + 1) * heads; ++h) {
      double of_head = 0;
      for (int t = 0; t < queries[s].count; ++t) of_head += entropies[std::int64_t{h} * most + t];
      sum += static_cast<float>(of_head), of_variance += static_cast<float>(variances[h]);
    }
    entropy[s] = sum, variance[s] = of_variance;
  }
};

}  // namespace

void run_cuda(const WindowMoments& a, CudaContext& cuda) {
  if (a.kv.num_rows == 0 || (!a.wants_scores && !a.wants_spread)) return;
  if (a.kv.head_dim > kMostTokenDim) throw CudaError("window_moments: heads of more than " + std::to_string(kMostTokenDim) + " channels");
  const CudaContext::Frame frame(cuda);
  const char* const name = "window_moments";
  const HeadsApart apart(a.kv);
  const std::int64_t total = apart.kv.total(), heads = apart.kv.num_rows;
  const std::int32_t sequences = a.kv.num_sequences();
  float *const sum = cuda.scratch<float>(total), *const squares = cuda.scratch<float>(total);
  cuda::fill(sum, 0, 4 * total, cuda.stream());
  cuda::fill(squares, 0, 4 * total, cuda.stream());
  AttentionStats stats;
  stats.kv = apart.kv, stats.queries = a.queries, stats.wants_sum_sq = true, stats.sum = sum, stats.sum_sq = squares;
  run_cuda(stats, cuda);
  const auto [queries, first] = upload_all(cuda, host_array(a.queries, sequences), host_array(a.kv.first, a.kv.num_rows + 1));
  const Window window{on_device(apart.kv, cuda), queries, sum, squares, a.kv.group};
  if (a.wants_scores) launch_over_rows(name, cuda, a.kv.num_rows, window.kv.longest, Score{window, first, a.gamma, a.scores});
  if (!a.wants_spread) return;
  int most = 1;
  for (std::int32_t s = 0; s < sequences; ++s) most = std::max(most, a.queries[s].count);
  double *const variances = cuda.scratch<double>(heads), *const entropies = cuda.scratch<double>(heads * most);
  launch(name, cuda, blocks_of(heads, kThreads), add_variances, window, variances);
  for_type(a.kv.type, [&](auto zero) {
    launch(name, cuda, blocks_of(heads * most, kThreads), measure_entropy<decltype(zero)>, window, most, entropies);
  });
  launch_over_rows(name, cuda, sequences, 1, Spread{queries, variances, entropies, apart.kv.kv_heads, most, a.entropy, a.variance});
}

}  // namespace kvlab
