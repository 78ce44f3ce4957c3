#pragma once

#include <initializer_list>

#include "kernels/device/cuda/device.cuh"

namespace kvlab {

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

}  // namespace kvlab
