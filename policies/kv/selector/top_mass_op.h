#pragma once

#include <cmath>

#include "kernels/rows/key_estimate.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Per query head the fewest candidates that have at least `mass` of the estimated attention (softmax over the candidates; ties: the
// earlier). A row gets the union over its query heads and its last candidate. Twilight, Lin et al. 2025, arXiv:2502.02770.
struct TopMass {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, bits = 4;
  const Queries* queries = nullptr;        // [num_rows / kv_heads], the last of each
  const float* const* estimate = nullptr;  // [num_rows] -> [tokens, head_dim]
  const std::int64_t* first = nullptr;
  bool lists_tokens = false;                // false: tokens 0, 1, ... of the row
  const std::int32_t* candidate = nullptr;  // [first[num_rows]] tokens, ascending
  double mass = 0.85;
  std::int32_t* token = nullptr;  // [first[num_rows]] out: each row's list from first[r] on, ascending
  std::int32_t* count = nullptr;  // [num_rows] CPU memory; in: candidates; out: list length

  // Counted as if all candidates were written; 8 FLOPs per weight for the softmax and the search.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "top_mass", .rows = num_rows};
    c.tokens = c.outputs = num_rows == 0 ? 0 : first[num_rows];
    c.bytes = c.tokens * (estimate_bytes(head_dim, bits) + (lists_tokens ? 8 : 4));
    c.flops = c.tokens * group * (2LL * head_dim + 8);
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  // Per candidate a weight, a place in the order and a mark.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return 3 * candidates(row); }
  void shapes(auto&& visit) { visit(queries, num_rows / kv_heads), visit(estimate, num_rows), visit(first, num_rows + 1); }
  void results(auto&& visit) { visit(count, num_rows); }

  [[nodiscard]] KVLAB_BOTH std::int64_t candidates(std::int64_t row) const { return first[row + 1] - first[row]; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = candidates(row), d = head_dim;
    float* const weight = team.room();
    auto *const order = reinterpret_cast<std::int32_t*>(weight + n), *const marked = order + n;
    const float* const q = queries[row / kv_heads].last(row % kv_heads, kv_heads, group, head_dim);
    const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
    team.each(n, [&](std::int64_t i) { marked[i] = i + 1 == n ? 1 : 0; });
    for (std::int64_t h = 0; h < group && n > 0; ++h) {
      team.each(n, [&](std::int64_t i) { weight[i] = scale * team.dot(q + h * d, estimate[row] + token_at(row, i) * d, d); });
      const float top = team.max(n, weight[0], [&](std::int64_t i) { return weight[i]; });
      team.each(n, [&](std::int64_t i) { weight[i] = std::exp(weight[i] - top); });
      team.sort(static_cast<std::int32_t>(n), order, [&](std::int32_t x, std::int32_t y) { return weight[x] > weight[y]; });
      team.once([&] { mark(weight, order, n, marked); });
    }
    const std::int64_t kept = team.pack(
        n, [&](std::int64_t i) { return marked[i] != 0; },
        [&](std::int64_t k, std::int64_t i) { token[first[row] + k] = static_cast<std::int32_t>(token_at(row, i)); });
    team.once([&] { count[row] = static_cast<std::int32_t>(kept); });
  }

 private:
  [[nodiscard]] KVLAB_BODY std::int64_t token_at(std::int64_t row, std::int64_t i) const {
    return lists_tokens ? candidate[first[row] + i] : i;
  }
  KVLAB_BODY void mark(const float* weight, const std::int32_t* order, std::int64_t n, std::int32_t* marked) const {
    double sum = 0, kept = 0;
    for (std::int64_t k = 0; k < n; ++k) sum += static_cast<double>(weight[order[k]]);
    for (std::int64_t k = 0; k < n && kept < mass * sum; ++k) marked[order[k]] = 1, kept += static_cast<double>(weight[order[k]]);
  }
};
KVLAB_ROW_OP(TopMass)

}  // namespace kvlab
