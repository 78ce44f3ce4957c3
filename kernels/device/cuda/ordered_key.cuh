#pragma once

#include "kernels/device/cuda/device.cuh"

namespace kvlab {

// In the order of floats; -0 equals 0, NaN is -infinity. No float has key 0 or the largest.
__device__ __forceinline__ std::uint32_t ordered_key(float x) {
  const std::uint32_t bits = __float_as_uint(x == x ? x + 0.0F : -INFINITY);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ __forceinline__ float float_of_key(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

}  // namespace kvlab
