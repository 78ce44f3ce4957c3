#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Image tokens (one token id) rank below all others of their row: their scores fall by the range of the row's finite scores and 1. LOOK-M,
// Wan et al. 2024, section 3.2, adds a large negative number.
struct LowerImages {
  KvRows kv;
  const std::int64_t* ids_first = nullptr;  // [kv.num_sequences() + 1]
  const std::int32_t* ids = nullptr;        // sequence s from ids_first[s] on, by position
  std::int32_t image_id = 0;
  float* scores = nullptr;  // [kv.total()]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = "lower_images", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = 20 * n, .flops = 4 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) { visit(kv), visit(ids, ids_first[kv.num_sequences()]), visit(ids_first, kv.num_sequences() + 1); }
  static constexpr bool kInParallel = true;

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    float* const of_row = scores + kv.first[row];
    const auto finite_or = [&](std::int64_t i, float other) { return std::isfinite(of_row[i]) ? of_row[i] : other; };
    const float most = team.max(kv.len[row], -INFINITY, [&](std::int64_t i) { return finite_or(i, -INFINITY); });
    const float least = -team.max(kv.len[row], -INFINITY, [&](std::int64_t i) { return -finite_or(i, INFINITY); });
    if (most < least) return;
    const std::int32_t* const of_sequence = ids + ids_first[row / kv.kv_heads];
    team.each(kv.len[row], [&](std::int64_t i) {
      const std::int32_t position = kv.position[kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i))];
      if (of_sequence[position] == image_id) of_row[i] -= most - least + 1.0F;
    });
  }
};
KVLAB_ROW_OP(LowerImages)

}  // namespace kvlab
