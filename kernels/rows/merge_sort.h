#pragma once

#include "kernels/rows/search.h"
#include "kernels/rows/team.h"

namespace kvlab {

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
