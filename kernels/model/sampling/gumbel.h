#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/element.h"

namespace kvlab {

// MurmurHash3's finalizer (Appleby 2011), with half of the key before each product.
KVLAB_BOTH constexpr std::uint32_t sampling_bits(std::uint64_t key, std::uint32_t token) {
  std::uint32_t x = token ^ static_cast<std::uint32_t>(key);
  x ^= x >> 16;
  x *= 0x85ebca6bU;
  x ^= static_cast<std::uint32_t>(key >> 32);
  x ^= x >> 13;
  x *= 0xc2b2ae35U;
  return x ^ x >> 16;
}

// -log(-log(1 - w)), w = (bits + 1/2) / 2^32; precise near w = 0, the large noise. Range -2.9 to 22.9.
KVLAB_BOTH inline float gumbel_noise(std::uint32_t bits) {
  const float w = (static_cast<float>(bits) + 0.5F) * 0x1p-32F;
  return -logf(-log1pf(-(w < 0x1.fffffep-1F ? w : 0x1.fffffep-1F)));
}
constexpr float kMostGumbelNoise = 22.9F;

}  // namespace kvlab
