#pragma once

#include <cstdint>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/device/cuda/row_tools.cuh"

// Any type, page and head_dim.
namespace kvlab {

// In device memory.
struct StatsQueries {
  const std::int32_t* first = nullptr;     // [sequences + 1]
  const std::int32_t* position = nullptr;  // [sequences] of the first one
  const float* const* data = nullptr;      // [sequences]
  std::int32_t sequences = 0;

  __device__ __forceinline__ int sequence(int token) const {
    return count_first(sequences - 1, [&](std::int32_t s) { return first[s + 1] <= token; });
  }
};

__device__ __forceinline__ int count_visible(const DeviceRows& kv, int row, int position) { return tokens_below(kv, row, position + 1); }

struct StatsLine {
  const float* q;
  int row, group_head, visible;
};

__device__ __forceinline__ StatsLine stats_line(const DeviceRows& kv, const StatsQueries& q, std::int64_t line) {
  const int heads = kv.kv_heads * kv.group, token = static_cast<int>(line / heads), head = static_cast<int>(line % heads);
  const int s = q.sequence(token), t = token - q.first[s], row = s * kv.kv_heads + head / kv.group;
  return {q.data[s] + (static_cast<std::int64_t>(t) * heads + head) * kv.head_dim, row, head % kv.group,
          count_visible(kv, row, q.position[s] + t)};
}

template <class T>
__global__ void __launch_bounds__(128) plain_log_sums(DeviceRows kv, StatsQueries q, float* log_sum) {
  KVLAB_SHARED(float, tops, 4);
  KVLAB_SHARED(float, sums, 4);
  const StatsLine line = stats_line(kv, q, blockIdx.x);
  const float scale = 1.0F / sqrtf(static_cast<float>(kv.head_dim));
  float top = -INFINITY, sum = 0;
  for (int i = warp_index(); i < line.visible; i += 4) {
    const T* const k = static_cast<const T*>(kv.k) + kv.slot(line.row, i) * kv.head_dim;
    const float z = scale * warp_dot(line.q, k, kv.head_dim), larger = fmaxf(top, z);
    sum = sum * expf(top - larger) + expf(z - larger);
    top = larger;
  }
  if (lane_index() == 0) tops[warp_index()] = top, sums[warp_index()] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 0; i < 4; ++i) top = fmaxf(top, tops[i]);
  sum = 0;
  for (int i = 0; i < 4; ++i) sum += tops[i] == -INFINITY ? 0.0F : expf(tops[i] - top) * sums[i];
  log_sum[blockIdx.x] = top == -INFINITY ? top : top + logf(sum);
}

struct PlainStats {
  float *sum, *sum_sq, *max;
  const float* log_sum;
  AttentionStats::Group group;
  bool weigh_by_visible;
  std::int32_t visible_offset;
  const VoteWeight* votes = nullptr;  // [sequences]; may be null
  float* lines = nullptr;             // may be null: [most queries, line_tokens] w_t p_t
  std::int64_t line_tokens = 0;
};

// A warp per token; `blocks` of four per row.
template <class T>
__global__ void __launch_bounds__(128) plain_stats(DeviceRows kv, StatsQueries q, PlainStats a, int blocks) {
  const int row = static_cast<int>(blockIdx.x) / blocks, s = row / kv.kv_heads;
  const int i = static_cast<int>(blockIdx.x) % blocks * 4 + warp_index();
  if (i >= kv.len[row]) return;
  const T* const k = static_cast<const T*>(kv.k) + kv.slot(row, i) * kv.head_dim;
  const int position = kv.position[kv.slot(row, i)], heads = kv.kv_heads * kv.group;
  const float scale = 1.0F / sqrtf(static_cast<float>(kv.head_dim));
  float sum = 0, sum_sq = 0, largest = 0;
  for (int token = q.first[s]; token < q.first[s + 1]; ++token) {
    const int t = token - q.first[s], query = q.position[s] + t;
    if (query < position) continue;
    float weight = a.weigh_by_visible ? static_cast<float>(count_visible(kv, row, query) + a.visible_offset) : 1.0F;
    if (a.votes != nullptr && (weight = a.votes[s].of(position, query)) == 0) continue;
    float x = 0;
    for (int g = 0; g < kv.group; ++g) {
      const std::int64_t head = row % kv.kv_heads * kv.group + g;
      const float z = scale * warp_dot(q.data[s] + (static_cast<std::int64_t>(t) * heads + head) * kv.head_dim, k, kv.head_dim);
      const float p = expf(z - a.log_sum[static_cast<std::int64_t>(token) * heads + head]);
      x = a.group == AttentionStats::Group::kMax ? fmaxf(x, p) : x + p;
    }
    if (a.group == AttentionStats::Group::kMean) x /= static_cast<float>(kv.group);
    sum += weight * x;
    if (a.lines != nullptr && lane_index() == 0) a.lines[t * a.line_tokens + kv.first[row] + i] = weight * x;
    sum_sq += x * x;
    largest = fmaxf(largest, x);
  }
  if (lane_index() != 0) return;
  const std::int64_t to = kv.first[row] + i;
  if (a.sum != nullptr) a.sum[to] += sum;
  if (a.sum_sq != nullptr) a.sum_sq[to] += sum_sq;
  if (a.max != nullptr) a.max[to] = fmaxf(a.max[to], largest);
}

struct QueryRange {
  std::int32_t begin = 0, count = 0;
};

// w_t p_t[i] per query: lines [range.count, a.kv.total()], 0 if not visible. kv: a.kv on the device. Does not write outputs of `a`.
void write_query_lines(const AttentionStats& a, const DeviceRows& kv, QueryRange range, float* lines, CudaContext& cuda);

}  // namespace kvlab
