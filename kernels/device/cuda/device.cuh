#pragma once

// CUDA under nvcc, the emulator (kernels/device/emulated) under g++; only this file and launch.cuh differ.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

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

// p is aligned to 16 bytes.
template <class T>
__device__ __forceinline__ void load8(const T* p, float (&x)[8]) {
  if constexpr (sizeof(T) == 2) {
    unpack8<T>(*reinterpret_cast<const uint4*>(p), x);
  } else {
    const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  }
}

template <class T>
__device__ __forceinline__ void store8(T* p, const float (&x)[8]) {
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint4*>(p) = pack8<T>(x);
  } else {
    reinterpret_cast<float4*>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
}

// N = 8, or 1 for any address.
template <class T, int N>
__device__ __forceinline__ void load_numbers(const T* p, float (&x)[N]) {
  if constexpr (N == 8)
    load8(p, x);
  else
    x[0] = load_float(p);
}
template <class T, int N>
__device__ __forceinline__ void store_numbers(T* p, const float (&x)[N]) {
  if constexpr (N == 8)
    store8(p, x);
  else
    store_float(p, x[0]);
}
// Rounds as a store and load would.
template <class T>
__device__ __forceinline__ void round8(float (&x)[8]) {
  if constexpr (sizeof(T) == 2) unpack8<T>(pack8<T>(x), x);
}

// Null arrays are ignored.
inline bool aligned16(std::initializer_list<const void*> arrays) {
  std::uintptr_t bits = 0;
  for (const void* p : arrays) bits |= reinterpret_cast<std::uintptr_t>(p);
  return bits % 16 == 0;
}
// f(zero of a piece): 16 bytes if all arrays allow it, else 2.
template <class F>
void for_piece(std::int64_t vector_bytes, std::initializer_list<const void*> arrays, F&& f) {
  if (vector_bytes % 16 == 0 && aligned16(arrays)) return f(uint4{});
  f(std::uint16_t{});
}

// `lanes` lanes (a power of two) share a part of a token.
struct TileWalk {
  int token, part, token_step, part_step, per_token;
  __device__ __forceinline__ TileWalk(int lanes, int parts_per_token) : per_token(parts_per_token) {
    const int mine = lane_index() / lanes, step = kWarpSize / lanes;
    token = mine / per_token, part = mine % per_token, token_step = step / per_token, part_step = step % per_token;
  }
  __device__ __forceinline__ void next() {
    token += token_step, part += part_step;
    if (part >= per_token) part -= per_token, ++token;
  }
};

// In the order of floats; -0 equals 0, NaN is -infinity. No float has key 0 or the largest.
__device__ __forceinline__ std::uint32_t ordered_key(float x) {
  const std::uint32_t bits = __float_as_uint(x == x ? x + 0.0F : -INFINITY);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ __forceinline__ float float_of_key(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

}  // namespace kvlab
