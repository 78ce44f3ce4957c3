#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

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
