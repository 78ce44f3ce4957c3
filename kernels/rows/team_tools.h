#pragma once

#include <cmath>

#include "kernels/rows/team.h"

// Steps that bodies of row operations share.
namespace kvlab {

// The largest of z [n], -infinity for none.
template <class Team>
[[nodiscard]] KVLAB_BODY float largest(const Team& team, std::int64_t n, const float* z) {
  return team.max(n, n > 0 ? z[0] : -INFINITY, [&](std::int64_t i) { return z[i]; });
}

// z [n] become exp(z - top). Returns the sum.
template <class Team>
KVLAB_BODY float exp_sum(const Team& team, std::int64_t n, float top, float* z) {
  team.each(n, [&](std::int64_t i) { z[i] = std::exp(z[i] - top); });
  return team.sum(n, [&](std::int64_t i) { return z[i]; });
}

// marked [n]: 1 for the indices that team.best() gives, else 0.
template <class Team, class F>
KVLAB_BODY void mark_best(const Team& team, std::int32_t n, std::int32_t count, F&& f, std::int32_t* marked) {
  team.each(n, [&](std::int64_t i) { marked[i] = 0; });
  team.best(n, count, f, [&](std::int32_t i) { marked[i] = 1; });
}

}  // namespace kvlab
