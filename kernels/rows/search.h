#pragma once

#include <cstdint>

#include "kernels/element.h"
#include "kernels/rows/team.h"

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

// team.sort in n log^2 n comparisons on a device; `spare` [n] is scratch memory.
template <class Team, class Before>
KVLAB_BODY void merge_sort(const Team& team, std::int32_t n, std::int32_t* order, std::int32_t* spare, const Before& before) {
  if constexpr (!Team::kOnDevice) return team.sort(n, order, before);
  std::int32_t *from = order, *to = spare;
  team.each(n, [&](std::int64_t i) { order[i] = static_cast<std::int32_t>(i); });
  for (std::int64_t run = 1; run < n; run *= 2) {
    // An entry moves by the entries of the neighbouring run that come before it.
    team.each(n, [&](std::int64_t i) {
      const std::int64_t begin = i / (2 * run) * 2 * run, middle = begin + run < n ? begin + run : n;
      const std::int64_t end = begin + 2 * run < n ? begin + 2 * run : n;
      const std::int32_t own = from[i];
      const auto earlier =
          i < middle ? count_first(static_cast<std::int32_t>(end - middle), [&](auto j) { return before(from[middle + j], own); })
                     : count_first(static_cast<std::int32_t>(middle - begin), [&](auto j) { return !before(own, from[begin + j]); });
      to[(i < middle ? i : begin + i - middle) + earlier] = own;
    });
    std::int32_t* const merged = to;
    to = from, from = merged;
  }
  if (from != order) team.each(n, [&](std::int64_t i) { order[i] = from[i]; });
}

}  // namespace kvlab
