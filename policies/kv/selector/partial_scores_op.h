#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Approximate logits from keys in `width` directions (QueryBasis): z_h[i] = (q_h . basis) . partial_i / sqrt(d), scores[first[r] + i] the
// maximum over the row's query heads of z_h[i] - max_j z_h[j].
struct PartialScores {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2, width = 0;
  const Queries* queries = nullptr;       // [num_rows / kv_heads], the last one of each counts
  const float* const* basis = nullptr;    // [num_rows] -> [width, head_dim]
  const float* const* partial = nullptr;  // [num_rows] -> [tokens, width]
  const std::int64_t* first = nullptr;    // [num_rows + 1] tokens scored: 0, 1, ... of the row
  float* scores = nullptr;                // [first[num_rows]] out

  // Partial keys are read at the keys' precision, scores written; 2 FLOPs per direction, query head and token, 3 for the maxima.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "partial_scores", .rows = num_rows};
    for (std::int32_t r = 0; r < num_rows; ++r) {
      const std::int64_t n = first[r + 1] - first[r];
      if (n == 0) continue;
      c.tokens += n;
      c.outputs += n;
      c.bytes += n * width * kv_bytes + 4 * n + 2LL * group * head_dim;
      c.flops += n * group * (2LL * width + 3) + 2LL * group * width * head_dim;
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  // The query in the basis, a logit of each token.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return width + first[row + 1] - first[row]; }
  void shapes(auto&& visit) {
    visit(queries, num_rows / kv_heads), visit(basis, num_rows), visit(partial, num_rows), visit(first, num_rows + 1);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = first[row + 1] - first[row], d = head_dim, w = width;
    if (n == 0) return;
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    const float* const heads = queries[row / kv_heads].last(row % kv_heads, kv_heads, group, head_dim);
    float *const q = team.room(), *const z = q + w, *const out = scores + first[row];
    for (std::int64_t h = 0; h < group; ++h) {
      team.each(w, [&](std::int64_t j) { q[j] = scale * team.dot(heads + h * d, basis[row] + j * d, d); });
      team.dots(
          n, w, q, [&](std::int64_t i) { return partial[row] + i * w; }, [&](std::int64_t i, float x) { z[i] = x; });
      const float top = largest(team, n, z);
      team.each(n, [&](std::int64_t i) {
        const float x = z[i] - top;
        out[i] = h == 0 || out[i] < x ? x : out[i];
      });
    }
  }
};
KVLAB_ROW_OP(PartialScores)

// Tokens that each KV head of a sequence takes: the scores above -alpha, averaged over its KV heads, rounded down, at least 1, at most
// cap[r]. InfiniGen, Lee et al. 2024, section 4.3.
struct FetchCounts {
  std::int32_t num_rows = 0, kv_heads = 1;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;
  float alpha = 4.0F;
  const std::int32_t* cap = nullptr;  // [num_rows]
  std::int32_t* count = nullptr;      // [num_rows] out, CPU memory

  // Scores are read once.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = first[num_rows];
    return {.op = "fetch_counts", .rows = num_rows, .tokens = n, .outputs = num_rows, .bytes = 4 * n + 4LL * num_rows, .flops = n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows / kv_heads; }
  void shapes(auto&& visit) { visit(first, num_rows + 1), visit(cap, num_rows); }
  void results(auto&& visit) { visit(count, num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t sequence) const {
    const std::int64_t row0 = sequence * kv_heads, begin = first[row0];
    const std::int64_t wanted = team.template sum<std::int64_t>(
        first[row0 + kv_heads] - begin, [&](std::int64_t i) { return std::int64_t{scores[begin + i] > -alpha ? 1 : 0}; });
    const std::int64_t each = wanted / kv_heads < 1 ? 1 : wanted / kv_heads;
    team.each(kv_heads, [&](std::int64_t h) {
      const std::int32_t most = cap[row0 + h];
      count[row0 + h] = each < most ? static_cast<std::int32_t>(each) : most;
    });
  }
};
KVLAB_ROW_OP(FetchCounts)

}  // namespace kvlab
