#pragma once

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/rows/search.h"

namespace kvlab {

constexpr int kRowThreads = 256;

inline LaunchShape block_each(std::int64_t items) { return blocks_of(items, kRowThreads); }
inline LaunchShape warp_each(std::int64_t items) { return block_each(ceil_div(items, kRowThreads / kWarpSize)); }
__device__ __forceinline__ std::int64_t warp_item() { return std::int64_t{blockIdx.x} * (kRowThreads / kWarpSize) + warp_index(); }

// The same in all lanes, which all call it.
template <class T, class U>
__device__ __forceinline__ float warp_dot(const T* x, const U* y, int n) {
  float sum = 0;
  for (int c = lane_index(); c < n; c += kWarpSize) sum += to_float(x[c]) * to_float(y[c]);
  return warp_sum(sum);
}

template <class T>
__device__ __forceinline__ T* key_at(const DeviceRows& kv, int row, std::int32_t token) {
  return static_cast<T*>(kv.k) + kv.slot(row, token) * kv.head_dim;
}
template <class T>
__device__ __forceinline__ T* value_at(const DeviceRows& kv, int row, std::int32_t token) {
  return static_cast<T*>(kv.v) + kv.slot(row, token) * kv.head_dim;
}

// Positions ascend along a row.
__device__ __forceinline__ std::int32_t tokens_below(const DeviceRows& kv, int row, std::int32_t position) {
  return count_first(kv.len[row], [&](std::int32_t i) { return kv.position[kv.slot(row, i)] < position; });
}

__device__ __forceinline__ float block_max(float x, float* shared) {
  return block_reduce(x, -INFINITY, shared, [](float a, float b) { return fmaxf(a, b); });
}

// Elements of ragged rows: block b has chunk b % chunks of row b / chunks.
constexpr int kOverRowsThreads = 256, kOverRowsEach = 4, kOverRowsChunk = kOverRowsThreads * kOverRowsEach;

// f(row, i) for i < f.count(row), in no order.
template <class F>
__global__ void __launch_bounds__(kOverRowsThreads) over_rows(F f, int chunks) {
  const int row = blockIdx.x / chunks;
  const std::int64_t n = f.count(row), begin = std::int64_t{blockIdx.x % chunks} * kOverRowsChunk + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kOverRowsEach; ++j)
    if (begin + j * kOverRowsThreads < n) f(row, begin + j * kOverRowsThreads);
}

template <class F>
void launch_over_rows(const char* name, CudaContext& cuda, std::int64_t rows, std::int64_t longest, const F& f) {
  const std::int64_t chunks = ceil_div(longest, kOverRowsChunk);
  launch(name, cuda, blocks_of(rows * chunks, kOverRowsThreads), over_rows<F>, f, static_cast<int>(chunks));
}

// The longest of rows [first[r], first[r + 1]).
inline std::int64_t longest_row(const std::int64_t* first, std::int64_t rows) {
  std::int64_t longest = 0;
  for (std::int64_t r = 0; r < rows; ++r) longest = first[r + 1] - first[r] > longest ? first[r + 1] - first[r] : longest;
  return longest;
}

// top = largest logit(i) of i < n, sum of exp(logit(i) - top); -infinity and 0 if n is 0. Whole warps call logit. `shared` [33]: scratch;
// all threads call it.
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

// Entries before the first -1.
__device__ __forceinline__ std::int32_t listed_count(const DeviceList& list, int row) {
  const std::int32_t* const index = list.index + list.first[row];
  return count_first(list.entries(row), [&](std::int32_t i) { return index[i] >= 0; });
}

template <class T>
__device__ __forceinline__ T* listed_at(const DeviceList& list, int row, std::int32_t i) {
  return static_cast<T*>(list.data) + list.rows.slot(row, list.index[list.first[row] + i]) * list.rows.head_dim;
}

// As kernels/storage/cast: NaN becomes 0, values are clamped.
__device__ __forceinline__ std::uint16_t half_bits(float x) {
  return x == x ? from_float<f16>(fminf(fmaxf(x, -65504.0F), 65504.0F)).bits : std::uint16_t{0};
}

}  // namespace kvlab
