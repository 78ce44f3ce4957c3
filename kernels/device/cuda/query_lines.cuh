#pragma once

#include "kernels/device/cuda/row_tools.cuh"

namespace kvlab {

// top = largest logit(i) of i < n, sum of exp(logit(i) - top); -infinity and 0 if n is 0. A whole warp calls logit. `shared` [33] is
// scratch; all threads call it.
struct Softmax {
  float top, sum;
};
template <class Logit>
__device__ __forceinline__ Softmax block_softmax(std::int64_t n, float* shared, Logit&& logit) {
  float top = -INFINITY, sum = 0;
  for (std::int64_t i = warp_index(); i < n; i += blockDim.x / kWarpSize) {
    const float z = logit(i), higher = fmaxf(top, z);
    if (higher == -INFINITY) continue;
    sum = sum * expf(top - higher) + expf(z - higher);
    top = higher;
  }
  const float most = block_max(top, shared);
  const float mine = lane_index() == 0 && sum > 0 ? sum * expf(top - most) : 0.0F;
  return {most, block_sum(mine, shared)};
}

// A query head; it sees positions up to its own.
struct QueryLine {
  const float* query;
  std::int32_t row, position;
};
struct LineStats {
  float top, sum;
  std::int32_t visible;
};
// All tokens, or those listed, ascending.
struct LineRows {
  DeviceRows kv;
  const std::int64_t* first;  // of the lists
  const std::int32_t* index;
  bool lists_tokens;
  float scale;

  __device__ std::int32_t tokens(int row) const {
    return lists_tokens ? static_cast<std::int32_t>(first[row + 1] - first[row]) : kv.len[row];
  }
  __device__ std::int32_t token(int row, std::int32_t i) const { return lists_tokens ? index[first[row] + i] : i; }
  __device__ std::int32_t visible(int row, std::int32_t position) const {
    return count_first(tokens(row), [&](std::int32_t i) { return kv.position[kv.slot(row, token(row, i))] <= position; });
  }
  // By a whole warp.
  template <class T>
  __device__ float logit(const QueryLine& line, std::int32_t i) const {
    return scale * warp_dot(line.query, key_at<T>(kv, line.row, token(line.row, i)), kv.head_dim);
  }
  template <class T>
  __device__ float probability(const QueryLine& line, const LineStats& stats, std::int32_t i) const {
    return i < stats.visible ? expf(logit<T>(line, i) - stats.top) / stats.sum : 0.0F;
  }
};

// One block per line.
template <class T>
__global__ void __launch_bounds__(kRowThreads) line_stats(LineRows a, const QueryLine* lines, LineStats* stats) {
  KVLAB_SHARED(float, shared, 33);
  const QueryLine line = lines[blockIdx.x];
  const std::int32_t visible = a.visible(line.row, line.position);
  const Softmax s = block_softmax(visible, shared, [&](std::int64_t i) { return a.logit<T>(line, static_cast<std::int32_t>(i)); });
  if (threadIdx.x == 0) stats[blockIdx.x] = {s.top, s.sum, visible};
}

}  // namespace kvlab
