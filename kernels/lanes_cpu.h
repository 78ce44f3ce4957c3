#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

// For *_cpu.cpp files only, like Eigen.
namespace kvlab {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowMap = Eigen::Map<const RowMatrix, 0, Eigen::OuterStride<>>;

// For any vector width. Results of Eigen's variable-length expressions depend on addresses.
using Lanes = Eigen::Array<float, 16, 1>;
constexpr std::int64_t kLanes = 16;

// x[0 .. n), the rest `fill`.
inline Lanes load(const float* x, std::int64_t n, float fill = 0.0F) {
  if (n >= kLanes) return Eigen::Map<const Lanes>(x);
  Lanes lanes = Lanes::Constant(fill);
  std::copy_n(x, n, lanes.data());
  return lanes;
}
inline void store(const Lanes& lanes, float* x, std::int64_t n) {
  if (n >= kLanes)
    Eigen::Map<Lanes>{x} = lanes;  // three times as fast as copy_n
  else
    std::copy_n(lanes.data(), n, x);
}

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
