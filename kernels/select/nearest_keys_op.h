#pragma once

#include <cmath>

#include "kernels/rows/kv_vector.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// The keep[r] keys of largest product with each query head, among tokens [begin[r], end[r]). List h of row r is index[index_first[r * group
// + h] ..), ascending; ties go to the lower token. visit_frac < 1 prices a search that visits this share of the keys per query head
// (RetrievalAttention, Liu et al. 2024, section 4: 1 to 3 %).
struct NearestKeys {
  KvRows kv;
  const Queries* queries = nullptr;                                      // [kv.num_sequences()], uses the last query of each
  const std::int32_t *begin = nullptr, *end = nullptr, *keep = nullptr;  // [kv.num_rows], keep <= end - begin
  double visit_frac = 1;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows * kv.group + 1]
  std::int32_t* index = nullptr;              // out

  // Reads visited keys once per row, or per query head if visit_frac < 1; 2 FLOPs per channel, query head and key.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = visit_frac < 1 ? "ann_search" : "nearest_keys", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const auto visits = static_cast<std::int64_t>(std::ceil(visit_frac * static_cast<double>(end[r] - begin[r])));
      const std::int64_t lists = static_cast<std::int64_t>(keep[r]) * kv.group;
      c.tokens += visits;
      c.outputs += lists;
      c.bytes += visits * (visit_frac < 1 ? kv.group : 1) * kv.head_dim * kv.kv_bytes + 4 * lists;
      c.flops += 2 * visits * kv.group * kv.head_dim;
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return std::int64_t{kv.num_rows} * kv.group; }
  void shapes(auto&& visit) {
    visit(queries, kv.num_sequences()), visit(begin, kv.num_rows), visit(end, kv.num_rows), visit(keep, kv.num_rows);
    visit(index_first, rows() + 1), visit(kv);
  }
  // A product and a mark of each key.
  [[nodiscard]] std::int64_t room(std::int64_t list) const { return keep[list / kv.group] > 0 ? 2 * keys(list / kv.group) : 0; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t list) const {
    const std::int64_t row = list / kv.group, n = keys(row), d = kv.head_dim;
    if (keep[row] <= 0) return;
    const float* const q = queries[row / kv.kv_heads].last(row % kv.kv_heads, kv.kv_heads, kv.group, kv.head_dim) + list % kv.group * d;
    float *const product = team.room(), *const is_kept = product + n;
    team.dots(
        n, d, q, [&](std::int64_t i) { return key_of(team, kv, row, begin[row] + i); },
        [&](std::int64_t i, float x) { product[i] = x, is_kept[i] = 0; });
    team.best(
        static_cast<std::int32_t>(n), keep[row], [&](std::int32_t i) { return product[i]; }, [&](std::int32_t i) { is_kept[i] = 1; });
    std::int32_t* const out = index + index_first[list];
    team.pack(
        n, [&](std::int64_t i) { return is_kept[i] != 0; },
        [&](std::int64_t k, std::int64_t i) { out[k] = begin[row] + static_cast<std::int32_t>(i); });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t keys(std::int64_t row) const { return end[row] - begin[row]; }
};
KVLAB_ROW_OP(NearestKeys)

}  // namespace kvlab
