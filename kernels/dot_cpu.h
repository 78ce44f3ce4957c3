#pragma once

#include "kernels/lanes_cpu.h"

// For *_cpu.cpp files only, like Eigen.
namespace kvlab {

// Sum of f(a[i], b[i]) in an order independent of addresses; f(0, 0) must be 0.
template <class F>
inline float lane_sum(const float* a, const float* b, std::int64_t n, F&& f) {
  Lanes sum = Lanes::Zero();
  for (std::int64_t i = 0; i < n; i += kLanes) sum += f(load(a + i, n - i), load(b + i, n - i));
  return sum.sum();
}

inline float lane_dot(const float* a, const float* b, std::int64_t n) {
  return lane_sum(a, b, n, [](const Lanes& x, const Lanes& y) -> Lanes { return x * y; });
}

}  // namespace kvlab
