#pragma once

#include <cstdint>

namespace kvlab {

// SplitMix64's finalizer (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"): a bijection.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Order matters.
constexpr std::uint64_t hash_combine(std::uint64_t seed, std::uint64_t value) { return mix64(seed ^ mix64(value)); }

}  // namespace kvlab
