#include <algorithm>

#include "kernels/device/cuda/token_sums.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/scorer/lag_scores/lag_scores.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

struct Lag {
  DeviceRows kv;
  const std::int32_t *begin, *partitions;
  std::int32_t lag, most;  // most: partitions of a row
  bool ranks;
  float epsilon;
  float* scores;
};

// Minima and maxima of the channels over tokens [begin, begin + n) of a row, to low and high [head_dim] in shared memory. Threads share
// a channel in slices of tokens; `parts` [2, kThreads] is scratch.
template <class T>
__device__ __forceinline__ void find_range(const T* data, const TokenPlaces& places, int d, std::int32_t begin, std::int32_t n, float* low,
                                           float* high, float* parts) {
  const int wide = min(d, kThreads), slices = kThreads / wide, slice = threadIdx.x / wide;
  for (int c0 = 0; c0 < d; c0 += wide) {
    const int c = c0 + threadIdx.x % wide;
    float least = INFINITY, most = -INFINITY;
    if (slice < slices && c < d) {
      for (std::int32_t i = slice; i < n; i += slices) {
        const float x = load_float(data + places(begin + i) * d + c);
        least = fminf(least, x), most = fmaxf(most, x);
      }
    }
    parts[threadIdx.x] = least, parts[kThreads + threadIdx.x] = most;
    __syncthreads();
    if (slice == 0 && c < d) {
      for (int s = 1; s < slices; ++s) {
        least = fminf(least, parts[s * wide + threadIdx.x]), most = fmaxf(most, parts[kThreads + s * wide + threadIdx.x]);
      }
      low[c] = least, high[c] = most;
    }
    __syncthreads();
  }
}

// Standard deviation over the channels of a token relative to the range; by the lanes of a warp.
template <class T>
__device__ __forceinline__ float deviation(const T* x, int d, const float* low, const float* high, float epsilon) {
  float sum = 0, squares = 0;
  for (int c = lane_index(); c < d; c += kWarpSize) sum += (load_float(x + c) - low[c]) / (high[c] - low[c] + epsilon);
  const float mean = warp_sum(sum) / static_cast<float>(d);
  for (int c = lane_index(); c < d; c += kWarpSize) {
    const float off = (load_float(x + c) - low[c]) / (high[c] - low[c] + epsilon) - mean;
    squares += off * off;
  }
  squares = warp_sum(squares);
  return d > 1 ? sqrtf(squares / static_cast<float>(d - 1)) : 0.0F;
}

// One block per partition. Shared memory: low and high [head_dim], the deviations and the scores [lag], scratch.
template <class T>
__global__ void __launch_bounds__(kThreads) score_partitions(Lag a) {
  KVLAB_DYNAMIC_SHARED(float, shared);
  KVLAB_SHARED(float, reduced, 33);
  const int row = blockIdx.x / a.most, partition = blockIdx.x % a.most, d = a.kv.head_dim;
  if (partition >= a.partitions[row]) return;
  float *const low = shared, *const high = low + d, *const spread = high + d, *const score = spread + a.lag, *const parts = score + a.lag;
  const std::int32_t begin = a.begin[row] + partition * a.lag;
  const TokenPlaces places(a.kv, row);
  for (int values = 0; values < 2; ++values) {
    const T* const data = static_cast<const T*>(values == 0 ? a.kv.k : a.kv.v);
    find_range(data, places, d, begin + a.lag, a.lag, low, high, parts);
    for (std::int32_t i = warp_index(); i < a.lag; i += kWarps) {
      const float x = deviation(data + places(begin + i) * d, d, low, high, a.epsilon);
      if (lane_index() == 0) spread[i] = x;
    }
    __syncthreads();
    float top = -INFINITY, sum = 0;
    for (std::int32_t i = threadIdx.x; i < a.lag; i += kThreads) top = fmaxf(top, spread[i]);
    top = block_reduce(top, -INFINITY, reduced, [](float x, float y) { return fmaxf(x, y); });
    for (std::int32_t i = threadIdx.x; i < a.lag; i += kThreads) sum += spread[i] = expf(spread[i] - top);
    sum = block_sum(sum, reduced);
    for (std::int32_t i = threadIdx.x; i < a.lag; i += kThreads) score[i] = (values == 0 ? 0.0F : score[i]) + spread[i] / sum / 2.0F;
    __syncthreads();
  }
  float* const out = a.scores + a.kv.first[row] + begin;
  for (std::int32_t i = threadIdx.x; i < a.lag; i += kThreads) {
    std::int32_t rank = 0;
    for (std::int32_t j = 0; a.ranks && j < a.lag; ++j) rank += score[j] < score[i] || (score[j] == score[i] && j < i) ? 1 : 0;
    out[i] = a.ranks ? static_cast<float>(rank) / static_cast<float>(a.lag) : score[i];
  }
}

}  // namespace

void run_cuda(const LagScores& a, CudaContext& cuda) {
  std::int32_t most = 0;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) most = std::max(most, a.partitions[r]);
  if (most == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int32_t rows = a.kv.num_rows;
  const auto [begin, partitions] = upload_all(cuda, host_array(a.begin, rows), host_array(a.partitions, rows));
  const Lag lag{on_device(a.kv, cuda), begin, partitions, a.lag, most, a.ranks, a.epsilon, a.scores};
  const auto floats = static_cast<std::size_t>(2 * a.kv.head_dim + 2 * a.lag + 2 * kThreads);
  if (static_cast<std::int64_t>(floats * sizeof(float)) + 256 > cuda.gpu().shared_bytes_per_block)
    throw CudaError("lag_scores: partitions of " + std::to_string(a.lag) + " tokens do not fit into shared memory");
  for_type(a.kv.type, [&](auto zero) {
    launch("lag_scores", cuda, {dim3(static_cast<unsigned>(std::int64_t{rows} * most)), dim3(kThreads), floats * sizeof(float)},
           score_partitions<decltype(zero)>, lag);
  });
}

}  // namespace kvlab
