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

}  // namespace kvlab
