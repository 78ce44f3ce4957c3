#include <algorithm>
#include <cmath>

#include "kernels/attention/pass_attention/pass_attention.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/score/projected_norms/projected_norms.h"

namespace kvlab {

namespace {

// For one sequence.
struct PassChunk {
  DeviceRows kv;
  std::int32_t row0, count, sink_end, ctx_begin, ctx_end;
  const float *queries, *k;
  float scale;
  PassAttention::Reduce reduce;
  PassAttention::Group group;
  const float* factor;  // [count]; null: 1
  const float* norms;   // of head_norms; null: 1
  Softmax* stats;       // [kv_heads, group, count]
  float* scores;

  __device__ const float* query(int kv_head, int head, std::int64_t t) const {
    return queries + ((t * kv.kv_heads + kv_head) * kv.group + head) * kv.head_dim;
  }
};

// A block per query and head.
template <class T>
__global__ void __launch_bounds__(kRowThreads) pass_stats(PassChunk a) {
  KVLAB_SHARED(float, shared, 33);
  const int t = blockIdx.x % a.count, head = blockIdx.x / a.count % a.kv.group, kv_head = blockIdx.x / a.count / a.kv.group;
  const int row = a.row0 + kv_head, d = a.kv.head_dim;
  const std::int32_t sinks = tokens_below(a.kv, row, a.sink_end), begin = tokens_below(a.kv, row, a.ctx_begin);
  const std::int32_t held = sinks + max(0, tokens_below(a.kv, row, a.ctx_end) - begin);
  const float* const q = a.query(kv_head, head, t);
  const Softmax s = block_softmax(held + t + 1, shared, [&](std::int64_t at) {
    const auto i = static_cast<std::int32_t>(at);
    if (i >= held) return a.scale * warp_dot(q, a.k + (std::int64_t{i - held} * a.kv.kv_heads + kv_head) * d, d);
    return a.scale * warp_dot(q, key_at<T>(a.kv, row, i < sinks ? i : begin + i - sinks), d);
  });
  if (threadIdx.x == 0) a.stats[blockIdx.x] = s;
}

// A warp per KV head and token of the range.
template <class T>
__global__ void __launch_bounds__(kRowThreads) pass_scores(PassChunk a, std::int32_t longest) {
  const std::int64_t item = warp_item();
  if (item >= std::int64_t{a.kv.kv_heads} * longest) return;
  const int kv_head = static_cast<int>(item / longest), row = a.row0 + kv_head;
  // Sinks take no scores.
  const std::int32_t token =
      max(tokens_below(a.kv, row, a.ctx_begin), tokens_below(a.kv, row, a.sink_end)) + static_cast<std::int32_t>(item % longest);
  if (token >= tokens_below(a.kv, row, a.ctx_end)) return;
  const bool takes_max = a.reduce == PassAttention::Reduce::kMax;
  const T* const key = key_at<T>(a.kv, row, token);
  float of_group = 0;
  for (int head = 0; head < a.kv.group; ++head) {
    float of_head = 0;
    for (int t = 0; t < a.count; ++t) {
      const Softmax s = a.stats[(std::int64_t{kv_head} * a.kv.group + head) * a.count + t];
      float p = expf(a.scale * warp_dot(a.query(kv_head, head, t), key, a.kv.head_dim) - s.top) / s.sum;
      if (a.factor != nullptr) p *= a.factor[t];
      of_head = takes_max ? fmaxf(of_head, p) : of_head + p;
    }
    if (a.norms != nullptr) of_head *= a.norms[a.kv.group * a.kv.first[row] + std::int64_t{head} * a.kv.len[row] + token];
    of_group = a.group == PassAttention::Group::kMax ? fmaxf(of_group, of_head) : of_group + of_head / static_cast<float>(a.kv.group);
  }
  if (lane_index() != 0) return;
  float& score = a.scores[a.kv.first[row] + token];
  score = takes_max ? fmaxf(score, of_group) : score + of_group;
}

// factor [count]: 1 / |hidden_t|. A block per query.
__global__ void __launch_bounds__(kRowThreads) hidden_factors(const float* hidden, std::int32_t hidden_dim, float* factor) {
  KVLAB_SHARED(float, shared, 33);
  float sum = 0;
  for (int c = threadIdx.x; c < hidden_dim; c += kRowThreads) {
    const float x = hidden[std::int64_t{blockIdx.x} * hidden_dim + c];
    sum += x * x;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) factor[blockIdx.x] = 1.0F / fmaxf(sqrtf(sum), 1e-12F);
}

void add_chunk(const PassAttention& a, const PassQueries& chunk, PassChunk pass, std::int32_t longest, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  pass.count = chunk.queries.count, pass.queries = chunk.queries.data, pass.k = chunk.k;
  pass.sink_end = std::min(a.sinks, chunk.ctx_begin), pass.ctx_begin = chunk.ctx_begin, pass.ctx_end = chunk.ctx_end;
  if (a.norms == PassAttention::Norms::kGradient) pass.factor = chunk.gradient;
  if (a.norms == PassAttention::Norms::kHidden) {
    float* const factor = cuda.scratch<float>(pass.count);
    launch("pass_attention", cuda, block_each(pass.count), hidden_factors, chunk.hidden, a.hidden_dim, factor);
    pass.factor = factor;
  }
  const std::int64_t lines = std::int64_t{pass.kv.kv_heads} * pass.kv.group * pass.count;
  pass.stats = cuda.scratch<Softmax>(lines);
  for_type(a.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch("pass_attention", cuda, block_each(lines), pass_stats<T>, pass);
    launch("pass_attention", cuda, warp_each(std::int64_t{pass.kv.kv_heads} * longest), pass_scores<T>, pass, longest);
  });
}

}  // namespace

void run_cuda(const PassAttention& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  cuda::fill(a.scores, 0, a.kv.total() * 4, cuda.stream());
  PassChunk pass{};
  pass.kv = on_device(a.kv, cuda);
  pass.scale = 1.0F / std::sqrt(static_cast<float>(a.kv.head_dim));
  pass.reduce = a.queries, pass.group = a.group, pass.scores = a.scores;
  if (a.norms != PassAttention::Norms::kNone) {
    float* const norms = cuda.scratch<float>(a.kv.group * a.kv.total());
    head_norms(a.kv, a.w_o, a.hidden_dim, ProjectedNorms::Kind::kL2, norms, cuda);
    pass.norms = norms;
  }
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    pass.row0 = s * a.kv.kv_heads;
    const std::int32_t longest = *std::max_element(a.kv.len + pass.row0, a.kv.len + pass.row0 + a.kv.kv_heads);
    for (const PassQueries& chunk : a.pass[static_cast<std::size_t>(s)])
      if (chunk.queries.count > 0 && longest > 0) add_chunk(a, chunk, pass, longest, cuda);
  }
}

}  // namespace kvlab
