#pragma once

#include <cstdint>

#include "kernels/rows/body.h"

namespace kvlab {

// Number of leading values in [0, n) with the monotone `holds`.
template <class Holds>
KVLAB_BODY std::int32_t count_first(std::int32_t n, Holds&& holds) {
  std::int32_t low = 0, high = n;
  while (low < high) {
    const std::int32_t middle = (low + high) / 2;
    if (holds(middle))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}
// Numbers below `value` in an ascending array.
KVLAB_BODY inline std::int32_t count_below(const std::int32_t* ascending, std::int32_t n, std::int32_t value) {
  return count_first(n, [&](std::int32_t i) { return ascending[i] < value; });
}
KVLAB_BODY inline bool is_among(const std::int32_t* ascending, std::int32_t n, std::int32_t value) {
  const std::int32_t at = count_below(ascending, n, value);
  return at < n && ascending[at] == value;
}

}  // namespace kvlab
