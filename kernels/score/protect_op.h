#pragma once

#include <cmath>
#include <limits>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Scores of tokens that must stay become `value`: of those at positions outside [begin[s], end[s]), or inside. With `above_max` the value
// is the largest score of the sequence's other tokens, over all KV heads, plus 1, or 1 where there are none, so that these scores can still
// be averaged or multiplied.
struct Protect {
  KvRows kv;
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_sequences] positions
  float* scores = nullptr;                              // [kv.total()]
  bool inside = false, above_max = false;
  float value = std::numeric_limits<float>::infinity();

  // Positions are read, with above_max the scores too; scores are written, counted as if all were.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = "protect",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = (above_max ? 12 : 8) * n,
            .flops = (above_max ? 3 : 2) * n};
  }
  [[nodiscard]] std::int64_t rows() const { return above_max ? kv.num_sequences() : kv.num_rows; }
  void shapes(auto&& visit) { visit(kv), visit(begin, kv.num_sequences()), visit(end, kv.num_sequences()); }
  static constexpr bool kInParallel = true;

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t row0 = above_max ? item * kv.kv_heads : item, row_end = above_max ? row0 + kv.kv_heads : item + 1;
    float x = value;
    if (above_max) {
      float top = -INFINITY;
      for (std::int64_t row = row0; row < row_end; ++row)
        top = team.max(kv.len[row], top, [&](std::int64_t i) { return stays(row, i) ? -INFINITY : scores[kv.first[row] + i]; });
      x = top == -INFINITY ? 1.0F : top + 1.0F;
    }
    for (std::int64_t row = row0; row < row_end; ++row) {
      team.each(kv.len[row], [&](std::int64_t i) {
        if (stays(row, i)) scores[kv.first[row] + i] = x;
      });
    }
  }

 private:
  [[nodiscard]] KVLAB_BODY bool stays(std::int64_t row, std::int64_t i) const {
    const std::int32_t position = kv.position[kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i))];
    return (position >= begin[row / kv.kv_heads] && position < end[row / kv.kv_heads]) == inside;
  }
};
KVLAB_ROW_OP(Protect)

}  // namespace kvlab
