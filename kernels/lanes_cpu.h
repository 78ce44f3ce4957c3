#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

// For *_cpu.cpp files only, like Eigen.
namespace kvlab {

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

}  // namespace kvlab
