#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

// Scores of tokens [begin[r], end[r]), or of the others, become `value`, plus `slope` per such token before it.
struct FillScores {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;                  // [num_rows + 1]
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_rows]
  float value = 0.0F, slope = 0.0F;
  float* scores = nullptr;  // [first[num_rows]]
  bool outside = false;

  [[nodiscard]] OpCall cost() const {
    std::int64_t n = 0;
    for (std::int32_t r = 0; r < num_rows; ++r) n += count(r);
    return {.op = "fill_scores", .rows = num_rows, .outputs = n, .bytes = 4 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(first, num_rows + 1), visit(begin, num_rows), visit(end, num_rows); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const {
    const std::int64_t inside = end[row] - begin[row];
    return outside ? first[row + 1] - first[row] - inside : inside;
  }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = !outside ? begin[row] + i : i < begin[row] ? i : end[row] + i - begin[row];
    scores[first[row] + at] = value + slope * static_cast<float>(i);
  }
};
KVLAB_EACH_OP(FillScores)

}  // namespace kvlab
