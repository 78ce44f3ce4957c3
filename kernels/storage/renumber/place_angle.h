#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kvlab {

// Token i of a row of n tokens, and entry j of m of the row's list: by how many radians a pair of channels turns. Angles are the model's:
// products in fp32, as Rotary computes them.
KVLAB_BOTH inline double place_angle(std::int64_t end, std::int64_t n, std::int64_t i, std::int64_t m, std::int64_t j, float frequency) {
  const float from = static_cast<float>(end - n + i) * frequency, to = static_cast<float>(end - m + j) * frequency;
  return static_cast<double>(to) - static_cast<double>(from);
}

}  // namespace kvlab
