#pragma once

#include <cmath>

#include "kernels/rows/channels.h"
#include "kernels/rows/row_op.h"

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
  // A team takes kLines of a row: line 0 holds abs_sum, the others gram.
  static constexpr std::int64_t kLines = 4;
  static constexpr bool kInParallel = true;
  [[nodiscard]] KVLAB_BOTH std::int64_t lines() const { return wants_gram ? head_dim + 1 : 1; }
  [[nodiscard]] KVLAB_BOTH std::int64_t parts() const { return (lines() + kLines - 1) / kLines; }
  [[nodiscard]] std::int64_t rows() const { return num_rows * parts(); }
  void shapes(auto&& visit) {
    visit(queries, num_rows / kv_heads), visit(fresh, num_rows / kv_heads), visit(abs_sum, num_rows), visit(gram, num_rows);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t part) const {
    const std::int64_t row = part / parts(), begin = part % parts() * kLines, rest = lines() - begin, d = head_dim, s = row / kv_heads;
    if (fresh[s] == 2) return;
    each_channels(team, rest < kLines ? rest : kLines, d, [&](std::int64_t i, std::int64_t c, auto wide) {
      const std::int64_t line = begin + i - 1;
      float *const to = (line < 0 ? abs_sum[row] : gram[row] + line * d) + c, sum[wide.value] = {};
      for (int j = 0; j < wide.value && fresh[s] == 0; ++j) sum[j] = to[j];
      for (std::int64_t at = 0; at < std::int64_t{queries[s].count} * group; ++at) {
        const float* const q = queries[s].data + ((at / group * kv_heads + row % kv_heads) * group + at % group) * d;
        for (int j = 0; j < wide.value; ++j) sum[j] += line < 0 ? std::fabs(q[c + j]) : q[line] * q[c + j];
      }
      for (int j = 0; j < wide.value; ++j) to[j] = sum[j];
    });
  }
};
KVLAB_ROW_OP(QueryGram)

}  // namespace kvlab
