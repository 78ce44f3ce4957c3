#include <algorithm>
<<<<<<< HEAD
#include <cmath>

#include "kernels/attention_stats/attention_stats.h"
#include "kernels/cuda/device_rows.h"
#include "kernels/cuda/over_rows.cuh"
#include "kernels/cuda/token_sums.cuh"
#include "kernels/cuda/upload.h"
=======
#include <vector>

#include "kernels/attention_stats/stats_queries.cuh"
>>>>>>> 41441cd (Window moments in CUDA)
#include "kernels/window_moments/window_moments.h"

namespace kvlab {

namespace {

<<<<<<< HEAD
constexpr int kThreads = 256;

// Every query head as a KV head of its own, over the same pages.
struct HeadsApart {
  explicit HeadsApart(const KvRows& rows) : kv(rows) {
    first.push_back(0);
    for (std::int32_t r = 0; r < rows.num_rows; ++r)
      for (std::int32_t g = 0; g < rows.group; ++g) {
        len.push_back(rows.len[r]), page_begin.push_back(rows.page_begin[r]);
        first.push_back(first.back() + rows.len[r]);
      }
    kv.num_rows *= rows.group, kv.kv_heads *= rows.group, kv.group = 1;
    kv.len = len.data(), kv.first = first.data(), kv.page_begin = page_begin.data();
  }
  std::vector<std::int32_t> len, page_begin;
  std::vector<std::int64_t> first;
  KvRows kv;
};

struct Window {
  DeviceRows kv;               // heads apart
  const Queries* queries;      // [sequences]
  const float *sum, *squares;  // [kv.total] of the probabilities
  std::int32_t group;          // query heads per KV head

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

// spread [query heads]: sums of the variances over the earlier tokens. A block per query head.
__global__ void __launch_bounds__(kThreads) add_variances(Window a, double* spread) {
  KVLAB_SHARED(double, shared, 33);
  const int row = blockIdx.x;
  double sum = 0;
  for (std::int32_t i = threadIdx.x; i < a.kv.len[row] && a.queries_of(row).count > 0; i += kThreads)
    if (a.is_before(row, i)) sum += static_cast<double>(a.variance(row, i));
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) spread[row] = sum;
}

// entropy [query heads, most]: of each query over the earlier tokens. A block per query, a token per thread; with weights relative to the
// largest logit so far, e its sum, e_before that of earlier tokens and ez_before that of weight times relative logit:
// sum of -p log p = (e_before log e - ez_before) / e.
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

// Over the query heads of a sequence, one after the other. A thread per sequence.
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
=======
constexpr int kTokens = 4;  // of a block: one per warp

struct Moments {
  const float* log_sum;        // [queries of all sequences, q_heads]
  float* scores;               // may be null
  double *entropy, *variance;  // [rows, blocks of a row] sums over a block's tokens; may be null
  float gamma;
};

// Adds up a number of each of the four warps, in their order.
__device__ __forceinline__ double sum_warps(double x, double* shared) {
  __syncthreads();
  if (lane_index() == 0) shared[warp_index()] = x;
  __syncthreads();
  return shared[0] + shared[1] + shared[2] + shared[3];
}

// A warp per token of a row that lies before the window. Grid [longest / kTokens, rows].
template <class T>
__global__ void __launch_bounds__(128) window_moments(DeviceRows kv, StatsQueries q, Moments a) {
  KVLAB_SHARED(double, shared, kTokens);
  const int row = static_cast<int>(blockIdx.y), i = static_cast<int>(blockIdx.x) * kTokens + warp_index(), s = row / kv.kv_heads;
  const int begin = q.first[s], end = q.first[s + 1], w = end - begin, heads = kv.kv_heads * kv.group;
  const bool held = i < kv.len[row], before = held && w > 0 && kv.position[kv.slot(row, i)] < q.position[s];
  const T* const k = static_cast<const T*>(kv.k) + (held ? kv.slot(row, i) : 0) * kv.head_dim;
  const float scale = 1.0F / sqrtf(static_cast<float>(kv.head_dim));
  double score = 0, entropy = 0, variance = 0;
  for (int g = 0; g < kv.group && before; ++g) {
    double sum = 0, sum_sq = 0;
    for (int token = begin; token < end; ++token) {
      const std::int64_t head = row % kv.kv_heads * kv.group + g;
      const float* const query = q.data[s] + (static_cast<std::int64_t>(token - begin) * heads + head) * kv.head_dim;
      const float z = scale * warp_dot(query, k, kv.head_dim) - a.log_sum[static_cast<std::int64_t>(token) * heads + head], p = expf(z);
      sum += p, sum_sq += static_cast<double>(p) * p;
      if (p > 0.0F) entropy -= static_cast<double>(p) * z;
    }
    const double mean = sum / w, var = w > 1 ? fmax((sum_sq - sum * mean) / (w - 1), 0.0) : 0.0;
    score += (mean + static_cast<double>(a.gamma) * var) / kv.group;
    variance += var;
  }
  if (a.scores != nullptr && held && lane_index() == 0) a.scores[kv.first[row] + i] = static_cast<float>(score);
  if (a.entropy == nullptr) return;
  const double entropies = sum_warps(entropy, shared), variances = sum_warps(variance, shared);
  const std::int64_t to = static_cast<std::int64_t>(row) * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) a.entropy[to] = entropies, a.variance[to] = variances;
}

// A block per sequence adds up its rows.
__global__ void __launch_bounds__(128)
    join_moments(const double* entropy, const double* variance, std::int64_t each, float* entropies, float* variances) {
  KVLAB_SHARED(double, shared, 33);
  double e = 0, v = 0;
  for (std::int64_t i = threadIdx.x; i < each; i += blockDim.x) e += entropy[blockIdx.x * each + i], v += variance[blockIdx.x * each + i];
  e = block_sum(e, shared), v = block_sum(v, shared);
  if (threadIdx.x == 0) entropies[blockIdx.x] = static_cast<float>(e), variances[blockIdx.x] = static_cast<float>(v);
}

StatsQueries upload_queries(const Queries* queries, std::int32_t sequences, std::int32_t& tokens, CudaContext& cuda) {
  std::vector<std::int32_t> first{0}, position;
  std::vector<const float*> data;
  for (std::int32_t s = 0; s < sequences; ++s) {
    first.push_back(first.back() + queries[s].count);
    position.push_back(queries[s].first_position);
    data.push_back(queries[s].data);
  }
  tokens = first.back();
  return {cuda.upload(first.data(), sequences + 1), cuda.upload(position.data(), sequences), cuda.upload(data.data(), sequences),
          sequences};
}
>>>>>>> 41441cd (Window moments in CUDA)

}  // namespace

void run_cuda(const WindowMoments& a, CudaContext& cuda) {
<<<<<<< HEAD
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
  launch(name, cuda, {dim3(static_cast<unsigned>(heads)), dim3(kThreads)}, add_variances, window, variances);
  for_type(a.kv.type, [&](auto zero) {
    launch(name, cuda, {dim3(static_cast<unsigned>(heads * most)), dim3(kThreads)}, measure_entropy<decltype(zero)>, window, most,
           entropies);
  });
  launch_over_rows(name, cuda, sequences, 1, Spread{queries, variances, entropies, apart.kv.kv_heads, most, a.entropy, a.variance});
=======
  const std::int32_t sequences = a.kv.num_sequences();
  if (sequences == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  std::int32_t tokens = 0;
  const StatsQueries queries = upload_queries(a.queries, sequences, tokens, cuda);
  const std::int64_t lines = static_cast<std::int64_t>(tokens) * kv.kv_heads * kv.group, blocks = ceil_div(kv.longest, kTokens);
  const std::int64_t parts = blocks * kv.num_rows;
  auto* log_sum = cuda.scratch<float>(lines);
  const Moments moments{log_sum, a.wants_scores ? a.scores : nullptr, a.wants_spread ? cuda.scratch<double>(parts) : nullptr,
                        a.wants_spread ? cuda.scratch<double>(parts) : nullptr, a.gamma};
  for_type(a.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch("plain_log_sums", cuda, {dim3(static_cast<unsigned>(lines)), dim3(128)}, plain_log_sums<T>, kv, queries, log_sum);
    launch("window_moments", cuda, {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(kv.num_rows)), dim3(128)}, window_moments<T>,
           kv, queries, moments);
  });
  if (a.wants_spread)
    launch("join_moments", cuda, {dim3(static_cast<unsigned>(sequences)), dim3(128)}, join_moments,
           static_cast<const double*>(moments.entropy), static_cast<const double*>(moments.variance), blocks * kv.kv_heads, a.entropy,
           a.variance);
>>>>>>> 41441cd (Window moments in CUDA)
}

}  // namespace kvlab
