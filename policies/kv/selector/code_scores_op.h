#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

// Queries that read keys by their codes (key_codes). A2ATS, He et al. 2025, arXiv:2502.12665, section 3.1.
namespace kvlab {

// Logits of keys that are known by a code: z_h[i] = sum over j of a_ij q_h . v_j / sqrt(d), of token begin[r] + i and the row's vectors v.
//   kLogits     one number j per token, a_ij = 1: every z_h, at group * first[r] + h * (first[r + 1] - first[r]) + i
//   kAttention  a number for each part of the channels: sum over the row's query heads of the softmax over these tokens. PQCache, Zhang et
//               al. 2024, arXiv:2407.12820
//   kBelowTop   all a_ij, keys in the row's basis (ProjectKeys): maximum over the query heads of z_h[i] - max_j z_h[j]. InfiniGen, Lee et
//               al. 2024, section 4.3
struct CodeScores {
  enum class Kind : std::uint8_t { kLogits, kAttention, kBelowTop };
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2;
  Kind kind = Kind::kLogits;
  std::int32_t parts = 1, code_bits = 12;      // numbers of a token's code, and its bits as priced
  const Queries* queries = nullptr;            // [num_rows / kv_heads], the last one of each counts
  const std::int32_t* vectors = nullptr;       // [num_rows] of a part
  const float* const* vector = nullptr;        // [num_rows] -> [parts, vectors, head_dim / parts]
  const std::int32_t* const* code = nullptr;   // [num_rows] -> [tokens, parts]
  const float* const* coefficients = nullptr;  // [num_rows] -> [tokens, vectors] of kBelowTop
  const std::int32_t* begin = nullptr;         // [num_rows]
  const std::int64_t* first = nullptr;         // [num_rows + 1]
  float* scores = nullptr;                     // [first[num_rows]], kLogits: [group * first[num_rows]] out

  // Vectors (kBelowTop: queries) are read once per row; a product with each vector per head, then a sum for each token and head, 4 FLOPs
  // for a softmax, 3 for the maxima.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = kind == Kind::kLogits      ? "code_scores"
                   : kind == Kind::kAttention ? "product_scores"
                                              : "partial_scores",
             .rows = num_rows};
    for (std::int32_t r = 0; r < num_rows; ++r) {
      const std::int64_t n = first[r + 1] - first[r], outputs = kind == Kind::kLogits ? n * group : n, m = vectors[r];
      if (n == 0) continue;
      c.tokens += n;
      c.outputs += outputs;
      c.bytes += (kind == Kind::kBelowTop ? 2LL * group : m * kv_bytes) * head_dim + (n * code_bits + 7) / 8 + 4 * outputs;
      c.flops += group * (2 * m * head_dim + n * (kind == Kind::kLogits ? 1 : kind == Kind::kAttention ? parts + 4 : 2 * m + 3));
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  // A product with each vector, a logit of each token.
  [[nodiscard]] std::int64_t room(std::int64_t row) const {
    const std::int64_t n = first[row + 1] - first[row];
    return n == 0 ? 0 : std::int64_t{parts} * vectors[row] + (kind == Kind::kLogits ? 0 : n);
  }
  void shapes(auto&& visit) {
    const std::int32_t n = num_rows;
    visit(queries, n / kv_heads), visit(vectors, n), visit(vector, n), visit(code, n), visit(coefficients, n);
    visit(begin, n), visit(first, n + 1);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = first[row + 1] - first[row], d = head_dim;
    if (n == 0) return;
    const float* const q = queries[row / kv_heads].last(row % kv_heads, kv_heads, group, head_dim);
    float* const out = scores + (kind == Kind::kLogits ? group : 1) * first[row];
    for (std::int64_t h = 0; h < group; ++h) {
      float* const z = kind == Kind::kLogits ? out + h * n : team.room() + std::int64_t{parts} * vectors[row];
      write_logits(team, row, q + h * d, z);
      if (kind == Kind::kLogits) continue;
      const float top = largest(team, n, z), sum = kind == Kind::kAttention ? exp_sum(team, n, top, z) : 0.0F;
      team.each(n, [&](std::int64_t i) {
        const float x = kind == Kind::kAttention ? (h == 0 ? 0.0F : out[i]) + z[i] / sum : z[i] - top;
        if (kind == Kind::kAttention || h == 0 || out[i] < x) out[i] = x;
      });
    }
  }

 private:
  template <class Team>
  KVLAB_BODY void write_logits(const Team& team, std::int64_t row, const float* q, float* z) const {
    const std::int64_t n = first[row + 1] - first[row], width = head_dim / parts, m = vectors[row];
    const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
    float* const table = team.room();
    team.each(parts * m, [&](std::int64_t j) { table[j] = scale * team.dot(q + j / m * width, vector[row] + j * width, width); });
    if (kind == Kind::kBelowTop)
      return team.dots(
          n, m, table, [&](std::int64_t i) { return coefficients[row] + (begin[row] + i) * m; },
          [&](std::int64_t i, float x) { z[i] = x; });
    team.each(n, [&](std::int64_t i) {
      const std::int32_t* const number = code[row] + (begin[row] + i) * parts;
      float sum = table[number[0]];
      for (std::int64_t p = 1; p < parts; ++p) sum += table[p * m + number[p]];
      z[i] = sum;
    });
  }
};
KVLAB_ROW_OP(CodeScores)

}  // namespace kvlab
