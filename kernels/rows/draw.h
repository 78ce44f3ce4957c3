#pragma once

#include "base/hash.h"
#include "base/random.h"
#include "kernels/rows/team.h"

namespace kvlab {

// The bits of Draw{seed, purpose, request, step, layer}, and its uniform().
KVLAB_BODY inline std::uint64_t bits_of_draw(std::uint64_t seed, Purpose purpose, std::uint64_t request, std::uint64_t step = 0,
                                             std::uint64_t layer = 0) {
  std::uint64_t h = hash_combine(seed, static_cast<std::uint64_t>(purpose));
  h = hash_combine(h, request);
  h = hash_combine(h, step);
  return hash_combine(h, layer);
}
KVLAB_BODY inline double uniform_draw(std::uint64_t seed, Purpose purpose, std::uint64_t request, std::uint64_t step = 0,
                                      std::uint64_t layer = 0) {
  return static_cast<double>(bits_of_draw(seed, purpose, request, step, layer) >> 11) * 0x1.0p-53;
}

}  // namespace kvlab
