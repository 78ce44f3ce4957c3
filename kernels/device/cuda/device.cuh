#pragma once

// CUDA under nvcc, the emulator (kernels/device/emulated) under g++; only this file and launch.cuh differ.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/element.h"

#ifdef __CUDACC__
#include "kernels/device/cuda/device_nvcc.cuh"
#else
#include "kernels/device/cuda/device_emulated.cuh"
#endif

namespace kvlab {

constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr int kWarpSize = 32;

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x % kWarpSize); }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x / kWarpSize); }

template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T x, Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  return warp_reduce(x, [](T a, T b) { return a + b; });
}
template <class T>
__device__ __forceinline__ T warp_max(T x) {
  return warp_reduce(x, [](T a, T b) { return b > a ? b : a; });
}
template <class T>
__device__ __forceinline__ T warp_min(T x) {
  return warp_reduce(x, [](T a, T b) { return b < a ? b : a; });
}
// Sum up to the lane's own.
template <class T>
__device__ __forceinline__ T warp_scan(T x) {
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const T below = __shfl_up_sync(kAllLanes, x, offset);
    if (lane_index() >= offset) x += below;
  }
  return x;
}

// Equal in all threads of the block (a multiple of 32, one-dimensional). `shared` [33]: scratch; all threads call it.
template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T x, T neutral, T* shared, Combine combine) {
  x = warp_reduce(x, combine);
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  __syncthreads();  // an earlier result may still be read
  if (lane_index() == 0) shared[warp_index()] = x;
  __syncthreads();
  if (warp_index() == 0) {
    const T y = warp_reduce(lane_index() < warps ? shared[lane_index()] : neutral, combine);
    if (lane_index() == 0) shared[32] = y;
  }
  __syncthreads();
  return shared[32];
}

template <class T>
__device__ __forceinline__ T block_sum(T x, T* shared) {
  return block_reduce(x, T{0}, shared, [](T a, T b) { return a + b; });
}

// Sum over earlier threads. `shared` [33]: scratch; all threads call it.
template <class T>
__device__ __forceinline__ T block_scan_exclusive(T x, T* shared, T& total) {
  const T sum = warp_scan(x);
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  __syncthreads();
  if (lane_index() == kWarpSize - 1) shared[warp_index()] = sum;
  __syncthreads();
  if (warp_index() == 0) {
    const T own = lane_index() < warps ? shared[lane_index()] : T{0}, before = warp_scan(own);
    if (lane_index() == kWarpSize - 1) shared[32] = before;
    shared[lane_index()] = before - own;
  }
  __syncthreads();
  total = shared[32];
  return shared[warp_index()] + sum - x;
}

template <class T>
__device__ __forceinline__ void unpack8(const uint4& packed, float (&x)[8]) {
  const float2 a = unpack<T>(packed.x), b = unpack<T>(packed.y), c = unpack<T>(packed.z), d = unpack<T>(packed.w);
  x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y, x[4] = c.x, x[5] = c.y, x[6] = d.x, x[7] = d.y;
}

template <class T>
__device__ __forceinline__ uint4 pack8(const float (&x)[8]) {
  return make_uint4(pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7]));
}

template <class T>
__device__ __forceinline__ float load_float(const T* p) {
  return to_float(*p);
}
template <class T>
__device__ __forceinline__ void store_float(T* p, float x) {
  *p = from_float<T>(x);
}

}  // namespace kvlab
