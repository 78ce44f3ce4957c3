#pragma once

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Running means of keys and values that left a row: with n = before[r] tokens in them and the set D dropped now, mean = (n mean + sum_D x)
// / (n + |D|); unchanged without D (RazorAttention, Tang et al. 2024, arXiv:2407.15891, eq. 3).
struct MeanDropped {
  PartedRows parts;
  const std::int32_t* line = nullptr;          // [num_rows] row r's means are lines line[r]
  const std::int32_t* before = nullptr;        // [num_rows]
  float *k_mean = nullptr, *v_mean = nullptr;  // [*, head_dim] in and out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t dropped = parts.total_dropped(), d = parts.kv.head_dim;
    std::int64_t losing = 0;
    for (std::int32_t r = 0; r < parts.kv.num_rows; ++r) losing += parts.num_dropped(r) > 0 ? 1 : 0;
    return {.op = "mean_dropped",
            .rows = rows(),
            .tokens = dropped,
            .outputs = losing,
            .bytes = (2 * dropped + 4 * losing) * d * parts.kv.kv_bytes + 4 * dropped,
            .flops = 2 * d * dropped + 4 * d * losing};
  }
  [[nodiscard]] std::int64_t rows() const { return parts.kv.num_rows; }
  void shapes(auto&& visit) { visit_parts(parts, visit), visit(line, rows()), visit(before, rows()); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t at) const {
    const auto row = static_cast<std::int32_t>(at);
    const KvRows& kv = parts.kv;
    const std::int64_t d = kv.head_dim;
    const std::int32_t n = parts.num_dropped(row);
    if (n == 0) return;
    const std::int32_t* const dropped = parts.dropped + parts.dropped_first[row];
    team.each(2 * d, [&](std::int64_t i) {
      const void* const from = i < d ? kv.k : kv.v;
      const std::int64_t c = i % d;
      float& mean = (i < d ? k_mean : v_mean)[line[row] * d + c];
      double sum = before[row] == 0 ? 0 : static_cast<double>(mean) * before[row];
      for (std::int32_t j = 0; j < n; ++j) sum += static_cast<double>(element_at(from, kv.slot(row, dropped[j]) * d + c, kv.type));
      mean = static_cast<float>(sum / (before[row] + static_cast<double>(n)));
    });
  }
};
KVLAB_ROW_OP(MeanDropped)

}  // namespace kvlab
