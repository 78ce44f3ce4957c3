#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

// Include only in *_cpu.cpp files, like Eigen itself.
namespace kvlab {

// Sixteen floats at a time, for any vector width of the machine. Eigen's expressions of variable length begin at an aligned address and
// compute the floats before it with scalars, so exp and sums would differ in the last bit with the address of a buffer.
using Lanes = Eigen::Array<float, 16, 1>;
constexpr std::int64_t kLanes = 16;

// x[0 .. n) of at most sixteen, the rest `fill`.
inline Lanes load(const float* x, std::int64_t n, float fill = 0.0F) {
  if (n >= kLanes) return Eigen::Map<const Lanes>(x);
  Lanes lanes = Lanes::Constant(fill);
  std::copy_n(x, n, lanes.data());
  return lanes;
}
inline void store(const Lanes& lanes, float* x, std::int64_t n) {
  if (n >= kLanes)
    Eigen::Map<Lanes>{x} = lanes;  // a copy of unknown length goes through memory, at a third of the speed
  else
    std::copy_n(lanes.data(), n, x);
}

}  // namespace kvlab
