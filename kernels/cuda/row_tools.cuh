#pragma once

#include "kernels/cuda/device_rows.h"
#include "kernels/cuda/launch.cuh"

namespace kvlab {

constexpr int kRowThreads = 256;

// Grid of one block per item.
inline LaunchShape block_each(std::int64_t items) { return {dim3(static_cast<unsigned>(items)), dim3(kRowThreads)}; }
// Grid of one warp per item: item = warp_item().
inline LaunchShape warp_each(std::int64_t items) {
  return {dim3(static_cast<unsigned>(ceil_div(items, kRowThreads / kWarpSize))), dim3(kRowThreads)};
}
__device__ __forceinline__ std::int64_t warp_item() { return std::int64_t{blockIdx.x} * (kRowThreads / kWarpSize) + warp_index(); }

// The sum of products, the same in all lanes; all lanes call it.
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

__device__ __forceinline__ float block_max(float x, float* shared) {
  return block_reduce(x, -INFINITY, shared, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace kvlab
