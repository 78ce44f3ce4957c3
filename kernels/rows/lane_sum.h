#pragma once

#include <cstdint>

#include "kernels/rows/body.h"

// Sums in the order of sixteen CPU lanes: the same bits everywhere.
namespace kvlab {

KVLAB_BODY inline float fold_lanes(float (&lanes)[16]) {
  for (int width = 8; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

// Sum of f(i): lane_sum of kernels/dot_cpu.h.
template <class F>
KVLAB_BODY float sum_in_lanes(std::int64_t n, F&& f) {
  float lanes[16] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) lanes[j] += f(i + j);
  for (int j = 0; i + j < n; ++j) lanes[j] += f(i + j);
  return fold_lanes(lanes);
}

// With two sets of lanes in turn, then the last n % 16: an inner product of Eigen.
template <class F>
KVLAB_BODY float sum_in_two_lanes(std::int64_t n, F&& f) {
  float even[16] = {}, odd[16] = {};
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int j = 0; j < 16; ++j) even[j] += f(i + j), odd[j] += f(i + 16 + j);
  for (int j = 0; j < 16; ++j) even[j] += odd[j];
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) even[j] += f(i + j);
  float sum = fold_lanes(even);
  for (; i < n; ++i) sum += f(i);
  return sum;
}

template <class X, class Y>
KVLAB_BODY float dot_in_lanes(const X& x, const Y& y, std::int64_t n) {
  return sum_in_lanes(n, [&](std::int64_t i) { return x[i] * y[i]; });
}

}  // namespace kvlab
