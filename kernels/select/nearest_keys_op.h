#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// The keep[r] keys in [begin[r], end[r]) of largest product with the query, ascending; ties go to the lower.
//   kTokens  a list per query head: h of row r is index[index_first[r * group + h] ..). visit_frac < 1 prices a search of this share of the
//            keys per query head (RetrievalAttention, Liu et al. 2024, section 4: 1 to 3 %)
//   kLeaves  a list per row, by the largest bound on a query head's product with a leaf's keys: level 0 of a tree of PageSummaries. Scores
//            all leaves, but prices a search from the top that splits the node of largest bound. LeoAM, Sun et al. 2025
struct NearestKeys {
  enum class Kind : std::uint8_t { kTokens, kLeaves };
  KvRows kv;
  const Queries* queries = nullptr;                                      // [kv.num_sequences()], the last query of each
  const std::int32_t *begin = nullptr, *end = nullptr, *keep = nullptr;  // [kv.num_rows], keep <= end - begin
  double visit_frac = 1;                                                 // of kTokens
  const std::int64_t* index_first = nullptr;                             // [rows() + 1]
  std::int32_t* index = nullptr;                                         // out
  Kind kind = Kind::kTokens;
  std::int32_t levels = 1;               // of kLeaves
  const float* const* bounds = nullptr;  // [kv.num_rows] -> [leaves, 2, head_dim] of kLeaves

  // Visited keys are read once per row, or per query head if visit_frac < 1.
  [[nodiscard]] OpCall cost() const {
    const bool leaves = kind == Kind::kLeaves;
    OpCall c{.op = leaves ? "tree_select" : visit_frac < 1 ? "ann_search" : "nearest_keys", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      if (leaves && keep[r] == 0) continue;
      const std::int64_t visits = leaves ? most_nodes(r) : static_cast<std::int64_t>(std::ceil(visit_frac * static_cast<double>(keys(r))));
      const std::int64_t listed = keep[r] * lists(), vectors = leaves ? 2 : visit_frac < 1 ? kv.group : 1;
      c.tokens += visits;
      c.outputs += listed;
      c.bytes += visits * vectors * kv.head_dim * kv.kv_bytes + 4 * listed + (leaves ? 2LL * kv.group * kv.head_dim : 0);
      c.flops += (leaves ? 4 : 2) * visits * kv.group * kv.head_dim;
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows * lists(); }
  void shapes(auto&& visit) {
    visit(queries, kv.num_sequences()), visit(begin, kv.num_rows), visit(end, kv.num_rows), visit(keep, kv.num_rows);
    visit(bounds, kv.num_rows), visit(index_first, rows() + 1), visit(kv);
  }
  [[nodiscard]] std::int64_t room(std::int64_t list) const { return keep[list / lists()] > 0 ? 2 * keys(list / lists()) : 0; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t list) const {
    const std::int64_t row = list / lists(), n = keys(row), d = kv.head_dim;
    if (keep[row] <= 0) return;
    const float* q = queries[row / kv.kv_heads].last(row % kv.kv_heads, kv.kv_heads, kv.group, kv.head_dim) + list % lists() * d;
    float *const product = team.room(), *const is_kept = product + n;
    const auto put = [&](std::int64_t i, float x) { product[i] = x, is_kept[i] = 0; };
    if (kind == Kind::kTokens)
      team.dots(
          n, d, q, [&](std::int64_t i) { return key_of(team, kv, row, begin[row] + i); }, put);
    for (std::int64_t h = 0; h < kv.group && kind == Kind::kLeaves; ++h, q += d)
      team.sums(
          n, d, [&](std::int64_t i) { return bounds[row] + (begin[row] + i) * 2 * d; },
          [&](const float* low, std::int64_t c) {
            const float x = q[c] * low[c], y = q[c] * low[d + c];
            return x < y ? y : x;
          },
          [&](std::int64_t i, float x) { put(i, h == 0 || product[i] < x ? x : product[i]); });
    team.best(
        static_cast<std::int32_t>(n), keep[row], [&](std::int32_t i) { return product[i]; }, [&](std::int32_t i) { is_kept[i] = 1; });
    std::int32_t* const out = index + index_first[list];
    team.pack(
        n, [&](std::int64_t i) { return is_kept[i] != 0; },
        [&](std::int64_t k, std::int64_t i) { out[k] = begin[row] + static_cast<std::int32_t>(i); });
  }

 private:
  // Per row.
  [[nodiscard]] KVLAB_BOTH std::int64_t lists() const { return kind == Kind::kLeaves ? 1 : kv.group; }
  [[nodiscard]] KVLAB_BOTH std::int64_t keys(std::int64_t row) const { return end[row] - begin[row]; }
  // Upper bound: the roots and both children of each ancestor of a chosen leaf.
  [[nodiscard]] std::int64_t most_nodes(std::int32_t row) const {
    std::int64_t all = 0, roots = 0;
    for (std::int32_t j = 0; j < levels; ++j) all += roots = (keys(row) + (std::int64_t{1} << j) - 1) >> j;
    return std::min<std::int64_t>(all, roots + 2LL * (levels - 1) * keep[row]);
  }
};
KVLAB_ROW_OP(NearestKeys)

}  // namespace kvlab
