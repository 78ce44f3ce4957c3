#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Scores pooled over windows of `width`.
//   kAvg, kMax  each row's scores, smoothed in place over `width` (odd) neighbouring tokens. The average divides by `width` at the ends
//   too,
//               as if zeros followed; the maximum sees the row's tokens only
//   kBlockMax   scores[first[r] + b] = max of units[j], j in [b * stride - before, b * stride - before + width): LServe's logical pages
//               (Yang et al. 2025), InfLLM v2's kernels
struct Pool1d {
  enum class Kind : std::uint8_t { kAvg, kMax, kBlockMax };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const std::int32_t* len = nullptr;    // [num_rows] leading tokens of each row that take part; the others keep their scores
  float* scores = nullptr;
  std::int32_t width = 1;
  Kind kind = Kind::kAvg;
  std::int32_t stride = 1, before = 0;       // of kBlockMax, as are `units`
  const std::int64_t* unit_first = nullptr;  // [num_rows + 1]
  const float* units = nullptr;              // [unit_first[num_rows]]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = first[num_rows], read = of_blocks() ? unit_first[num_rows] : n;
    return {.op = of_blocks() ? "block_max" : "pool1d",
            .rows = num_rows,
            .tokens = read,
            .outputs = n,
            .bytes = 4 * (read + n),
            .flops = n * width};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(first, num_rows + 1), visit(len, num_rows), visit(unit_first, num_rows + 1); }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return of_blocks() ? 0 : len[row]; }  // the scores from before

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    float *const old = team.room(), *const of_row = scores + first[row];
    if (of_blocks()) return pool(team, units + unit_first[row], unit_first[row + 1] - unit_first[row], of_row, first[row + 1] - first[row]);
    team.each(len[row], [&](std::int64_t i) { old[i] = of_row[i]; });
    pool(team, old, len[row], of_row, len[row]);
  }

 private:
  [[nodiscard]] KVLAB_BOTH bool of_blocks() const { return kind == Kind::kBlockMax; }

  // x [n] to out [windows].
  template <class Team>
  KVLAB_BODY void pool(const Team& team, const float* x, std::int64_t n, float* out, std::int64_t windows) const {
    const std::int64_t half = width / 2, step = of_blocks() ? stride : 1;
    team.each(windows, [&](std::int64_t i) {
      const std::int64_t from = i * step - (of_blocks() ? before : half), to = from + (of_blocks() ? width : 2 * half + 1);
      const std::int64_t begin = from < 0 ? 0 : from, end = to < n ? to : n;
      out[i] = kind == Kind::kAvg ? sum(x, begin, end) / static_cast<float>(width) : most(x, begin, end);
    });
  }
  [[nodiscard]] KVLAB_BODY float most(const float* x, std::int64_t begin, std::int64_t end) const {
    float best = of_blocks() ? -INFINITY : x[begin];
    for (std::int64_t i = begin; i < end; ++i) best = best < x[i] ? x[i] : best;
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
