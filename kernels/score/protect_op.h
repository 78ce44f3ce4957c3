#pragma once

#include <cmath>
#include <limits>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Scores of tokens at positions outside (or inside) [begin[s], end[s]) become `value`. With `above_max` the value is the largest score of
// the sequence's other tokens, over all KV heads, plus 1, or 1 if there are none: such scores can be averaged or multiplied. With `lowers`
// tokens of one id go first: their scores fall by the range of the row's finite scores and 1. LOOK-M, Wan et al. 2024, section 3.2, adds a
// large negative number.
struct Protect {
  KvRows kv;
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_sequences] positions
  float* scores = nullptr;                              // [kv.total()]
  bool inside = false, above_max = false;
  float value = std::numeric_limits<float>::infinity();
  bool lowers = false;
  const std::int64_t* ids_first = nullptr;  // [num_sequences + 1]
  const std::int32_t* ids = nullptr;        // sequence s from ids_first[s] on, by position; CPU memory
  std::int32_t id = 0;

  // Counts all scores as written.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = lowers ? "lower_images" : "protect",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = (lowers      ? 20
                      : above_max ? 12
                                  : 8) *
                     n,
            .flops = (lowers      ? 4
                      : above_max ? 3
                                  : 2) *
                     n};
  }
  [[nodiscard]] std::int64_t rows() const { return above_max ? kv.num_sequences() : kv.num_rows; }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_sequences();
    visit(kv), visit(begin, n), visit(end, n);
    if (lowers) visit(ids, ids_first[n]), visit(ids_first, n + 1);
  }
  static constexpr bool kInParallel = true;

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t row0 = above_max ? item * kv.kv_heads : item, row_end = above_max ? row0 + kv.kv_heads : item + 1;
    float most = -INFINITY, least = INFINITY;
    for (std::int64_t row = row0; row < row_end && (above_max || lowers); ++row) {
      const float* const x = scores + kv.first[row];
      const auto counts = [&](std::int64_t i) { return lowers ? std::isfinite(x[i]) : !is_chosen(row, i); };
      most = team.max(kv.len[row], most, [&](std::int64_t i) { return counts(i) ? x[i] : -INFINITY; });
      if (lowers) least = -team.max(kv.len[row], -least, [&](std::int64_t i) { return counts(i) ? -x[i] : -INFINITY; });
    }
    if (lowers && most < least) return;
    const float range = most - least + 1.0F, chosen = !above_max ? value : most == -INFINITY ? 1.0F : most + 1.0F;
    for (std::int64_t row = row0; row < row_end; ++row) {
      float* const x = scores + kv.first[row];
      team.each(kv.len[row], [&](std::int64_t i) {
        if (is_chosen(row, i)) x[i] = lowers ? x[i] - range : chosen;
      });
    }
  }

 private:
  [[nodiscard]] KVLAB_BODY bool is_chosen(std::int64_t row, std::int64_t i) const {
    const std::int64_t s = row / kv.kv_heads;
    const std::int32_t position = kv.position[kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i))];
    return lowers ? ids[ids_first[s] + position] == id : (position >= begin[s] && position < end[s]) == inside;
  }
};
KVLAB_ROW_OP(Protect)

}  // namespace kvlab
