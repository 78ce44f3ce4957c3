#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"

namespace kvlab {

// Span j of sequence s is positions from begin[first[s] + j] to the next span. In each span the quota[r, j] tokens of largest score get
// `value` at least; all if fewer are held. Quotas of row r start at quota[quota_first[r]]. Ties go to the lower index.
struct SpanQuota {
  KvRows kv;
  const std::int64_t* first = nullptr;        // [num_sequences + 1] spans of each sequence
  const std::int32_t* begin = nullptr;        // [first[num_sequences]] positions, ascending from 0
  const std::int64_t* quota_first = nullptr;  // [num_rows + 1]
  const std::int32_t* quota = nullptr;        // [quota_first[num_rows]]
  float value = INFINITY;
  float* scores = nullptr;  // [kv.total()]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    std::int64_t marked = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r)
      for (std::int64_t j = quota_first[r]; j < quota_first[r + 1]; ++j) marked += quota[j];
    return {.op = "span_quota", .rows = kv.num_rows, .tokens = n, .outputs = marked, .bytes = 8 * n + 4 * marked, .flops = 2 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) {
    const std::int64_t sequences = kv.num_sequences();
    visit(begin, first[sequences]), visit(quota, quota_first[kv.num_rows]);
    visit(first, sequences + 1), visit(quota_first, kv.num_rows + 1), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t span0 = first[row / kv.kv_heads], spans = first[row / kv.kv_heads + 1] - span0;
    std::int32_t at = 0;
    for (std::int64_t j = 0; j < spans; ++j) {
      const std::int32_t end = j + 1 < spans ? tokens_before(row, begin[span0 + j + 1]) : kv.len[row];
      float* const span = scores + kv.first[row] + at;
      team.best(
          end - at, quota[quota_first[row] + j], [&](std::int32_t i) { return span[i]; },
          [&](std::int32_t i) { span[i] = span[i] < value ? value : span[i]; });
      at = end;
    }
  }

 private:
  // Positions ascend.
  [[nodiscard]] KVLAB_BODY std::int32_t tokens_before(std::int64_t row, std::int32_t position) const {
    return count_first(kv.len[row], [&](std::int32_t i) { return kv.position[kv.slot(static_cast<std::int32_t>(row), i)] < position; });
  }
};
KVLAB_ROW_OP(SpanQuota)

}  // namespace kvlab
