#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

// Queries that read keys by their codes (key_codes): A2ATS, He et al. 2025, arXiv:2502.12665, section 3.1.
namespace kvlab {

// Logits by codes: scores of query head h for token begin[r] + i: q_h . center of its code / sqrt(d), at
// group * first[r] + h * (first[r + 1] - first[r]) + i.
struct CodeScores {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2;
  const Queries* queries = nullptr;     // [num_rows / kv_heads], the last one of each counts
  const std::int32_t* codes = nullptr;  // [num_rows]
  const float* const* centers = nullptr;
  const std::int32_t* const* code = nullptr;
  const std::int32_t* begin = nullptr;  // [num_rows]
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  float* scores = nullptr;              // [group * first[num_rows]] out

  // Centers are read once per row, codes at 12 bits; a product with each center per head, then one look-up per token and head.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "code_scores", .rows = num_rows};
    for (std::int32_t r = 0; r < num_rows; ++r) {
      const std::int64_t n = first[r + 1] - first[r];
      if (n == 0) continue;
      c.tokens += n;
      c.outputs += n * group;
      c.bytes += static_cast<std::int64_t>(codes[r]) * head_dim * kv_bytes + (3 * n + 1) / 2 + 4 * n * group;
      c.flops += 2LL * group * codes[r] * head_dim + n * group;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  // A logit of each center.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return first[row + 1] > first[row] ? codes[row] : 0; }
  void shapes(auto&& visit) {
    const std::int32_t n = num_rows;
    visit(queries, n / kv_heads), visit(codes, n), visit(centers, n), visit(code, n), visit(begin, n), visit(first, n + 1);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = first[row + 1] - first[row], d = head_dim;
    if (n == 0) return;
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    const float* const q = queries[row / kv_heads].last(row % kv_heads, kv_heads, group, head_dim);
    const std::int32_t* const of = code[row] + begin[row];
    float* const table = team.room();
    for (std::int64_t h = 0; h < group; ++h) {
      float* const out = scores + group * first[row] + h * n;
      team.each(codes[row], [&](std::int64_t c) { table[c] = scale * team.dot(q + h * d, centers[row] + c * d, d); });
      team.each(n, [&](std::int64_t i) { out[i] = table[of[i]]; });
    }
  }
};
KVLAB_ROW_OP(CodeScores)

}  // namespace kvlab
