#pragma once

#include <cstdint>
#include <span>

#include "base/random.h"

namespace kvlab {

// Many normal numbers (mean 0, deviation 1) at about a nanosecond each, for tensors. Number i is a function of the draw and i
// alone. Values are the midpoints' quantiles of 4096 equal shares, so none exceeds 3.7 in size; deviation 0.9997.
class NormalStream {
 public:
  explicit NormalStream(Draw draw) : key_(draw.bits()) {}
  // Numbers first, first + 1, ...; `first` a multiple of 4.
  void fill(std::uint64_t first, std::span<float> to) const;

 private:
  std::uint64_t key_;
};

}  // namespace kvlab
