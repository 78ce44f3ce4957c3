#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Over a chunk's queries and the heads of a row's group: abs_sum[c] += |q_c|, and with wants_gram gram += q q^T. fresh[s] = 1 resets the
// sums first; 2 skips s.
struct QueryGram {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0;
  const Queries* queries = nullptr;     // [num_rows / kv_heads]
  const std::int32_t* fresh = nullptr;  // [num_rows / kv_heads] 0, 1 or 2
  bool wants_gram = false;
  float* const* abs_sum = nullptr;  // [num_rows] -> [head_dim]
  float* const* gram = nullptr;     // [num_rows] -> [head_dim, head_dim]

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "query_gram", .rows = num_rows};
    const std::int64_t d = head_dim, numbers = wants_gram ? d + d * d : d;
    for (std::int32_t r = 0; r < num_rows; ++r) {
      const std::int32_t s = r / kv_heads;
      if (fresh[s] == 2 || queries[s].count == 0) continue;
      const std::int64_t vectors = static_cast<std::int64_t>(queries[s].count) * group;
      c.outputs += numbers;
      c.bytes += vectors * d * 2 + 8 * numbers;
      c.flops += vectors * (d + (wants_gram ? 2 * d * d : 0));
    }
    return c;
  }
  // Per team: abs_sum of a row, or kLines of its gram.
  static constexpr int kLines = 8;
  static constexpr bool kInParallel = true;
  [[nodiscard]] KVLAB_BOTH std::int64_t parts() const { return 1 + (wants_gram ? (head_dim + kLines - 1) / kLines : 0); }
  [[nodiscard]] std::int64_t rows() const { return num_rows * parts(); }
  void shapes(auto&& visit) {
    visit(queries, num_rows / kv_heads), visit(fresh, num_rows / kv_heads), visit(abs_sum, num_rows), visit(gram, num_rows);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t part) const {
    const std::int64_t row = part / parts(), begin = (part % parts() - 1) * kLines, d = head_dim;
    if (fresh[row / kv_heads] == 2) return;
    each_channels(team, 1, d, [&](std::int64_t, std::int64_t c, auto wide) {
      if (begin < 0) return add<wide.value, 1>(row, abs_sum[row], {}, c, [](float, float x) { return std::fabs(x); });
      std::int64_t line[kLines];
      for (int l = 0; l < kLines; ++l) line[l] = begin + l < d ? begin + l : d - 1;  // the last line maybe several times
      add<wide.value, kLines>(row, gram[row], line, c, [](float of_line, float x) { return of_line * x; });
    });
  }

 private:
  // Channels from c on of the lines.
  template <int kWide, int kCount, class Term>
  KVLAB_BODY void add(std::int64_t row, float* to, const std::int64_t (&line)[kCount], std::int64_t c, Term&& term) const {
    const std::int64_t s = row / kv_heads, d = head_dim;
    float sum[kCount][kWide] = {};
    for (int l = 0; l < kCount && fresh[s] == 0; ++l)
      for (int j = 0; j < kWide; ++j) sum[l][j] = to[line[l] * d + c + j];
    for (std::int64_t t = 0; t < queries[s].count; ++t) {
      const float* q = queries[s].data + (t * kv_heads + row % kv_heads) * group * d;
      for (std::int32_t h = 0; h < group; ++h, q += d)
        for (int l = 0; l < kCount; ++l)
          for (int j = 0; j < kWide; ++j) sum[l][j] += term(q[line[l]], q[c + j]);
    }
    for (int l = 0; l < kCount; ++l)
      for (int j = 0; j < kWide; ++j) to[line[l] * d + c + j] = sum[l][j];
  }
};
KVLAB_ROW_OP(QueryGram)

}  // namespace kvlab
