#pragma once

#include "base/hash.h"
#include "base/random.h"
#include "kernels/device/cuda/device.cuh"

namespace kvlab {

// Draw{seed, purpose, request, step, layer}.uniform().
__device__ __forceinline__ double uniform_draw(std::uint64_t seed, Purpose purpose, std::uint64_t request, std::uint64_t step = 0,
                                               std::uint64_t layer = 0) {
  std::uint64_t h = hash_combine(seed, static_cast<std::uint64_t>(purpose));
  h = hash_combine(hash_combine(hash_combine(h, request), step), layer);
  return static_cast<double>(h >> 11) * 0x1.0p-53;
}

}  // namespace kvlab
