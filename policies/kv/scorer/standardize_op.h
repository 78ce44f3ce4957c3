#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Scores of a pool of rows (say the KV heads of a sequence) shifted to mean 0 and scaled to standard deviation 1 (divisor n - 1). A pool of
// equal scores becomes 0. In place.
struct Standardize {
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;  // [num_pools * rows_per_pool + 1]
  float* scores = nullptr;

  // Three passes of reading, one of writing.
  [[nodiscard]] OpCall cost() const {
    const std::int32_t all = num_pools * rows_per_pool;
    const std::int64_t n = all == 0 ? 0 : first[all];
    return {.op = "standardize", .rows = all, .tokens = n, .outputs = n, .bytes = 16 * n, .flops = 6 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_pools; }
  void shapes(auto&& visit) { visit(first, num_pools * rows_per_pool + 1); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t pool) const {
    const std::int64_t begin = first[pool * rows_per_pool], n = first[(pool + 1) * rows_per_pool] - begin;
    float* const x = scores + begin;
    const double sum = team.template sum<double>(n, [&](std::int64_t i) { return static_cast<double>(x[i]); });
    const double mean = n > 0 ? sum / static_cast<double>(n) : 0;
    const double squares = team.template sum<double>(
        n, [&](std::int64_t i) { return (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean); });
    const double deviation = n > 1 ? std::sqrt(squares / static_cast<double>(n - 1)) : 0;
    team.each(n, [&](std::int64_t i) { x[i] = deviation > 0 ? static_cast<float>((static_cast<double>(x[i]) - mean) / deviation) : 0.0F; });
  }
};
KVLAB_ROW_OP(Standardize)

}  // namespace kvlab
