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

}  // namespace kvlab
