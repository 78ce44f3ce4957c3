#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

// Each row's scores smoothed over `width` (odd) neighbouring tokens. The average divides by `width` at the ends too, as if zeros followed;
// the maximum sees the row's tokens only. In place.
struct Pool1d {
  enum class Kind : std::uint8_t { kAvg, kMax };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const std::int32_t* len = nullptr;    // [num_rows] leading tokens of each row that take part; the others keep their scores
  float* scores = nullptr;
  std::int32_t width = 1;
  Kind kind = Kind::kAvg;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = first[num_rows];
    return {.op = "pool1d", .rows = num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = n * width};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(first, num_rows + 1), visit(len, num_rows); }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return len[row]; }  // the scores from before

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = len[row], half = width / 2;
    float *const old = team.room(), *const of_row = scores + first[row];
    team.each(n, [&](std::int64_t i) { old[i] = of_row[i]; });
    team.each(n, [&](std::int64_t i) {
      const std::int64_t begin = i < half ? 0 : i - half, end = i + half + 1 < n ? i + half + 1 : n;
      of_row[i] = kind == Kind::kMax ? most(old, begin, end) : sum(old, begin, end) / static_cast<float>(width);
    });
  }

 private:
  [[nodiscard]] static KVLAB_BODY float most(const float* x, std::int64_t begin, std::int64_t end) {
    float best = x[begin];
    for (std::int64_t i = begin + 1; i < end; ++i) best = best < x[i] ? x[i] : best;
    return best;
  }
  [[nodiscard]] static KVLAB_BODY float sum(const float* x, std::int64_t begin, std::int64_t end) {
    float total = 0.0F;
    for (std::int64_t i = begin; i < end; ++i) total += x[i];
    return total;
  }
};
KVLAB_ROW_OP(Pool1d)

}  // namespace kvlab
