#pragma once

#include <limits>

#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// The counts[r] tokens of largest score of each row get `value` in `marked`, which may be `scores`; the others stay. Ties go to the lower
// index, NaN counts as -infinity. With `by_span` each span of a row has a count (all if fewer are held) and scores only rise. Span j of
// sequence s: positions from span_begin[span_first[s] + j] to the next span.
struct MarkTop {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;   // [num_rows + 1]
  const float* scores = nullptr;         // [first[num_rows]]
  const std::int32_t* counts = nullptr;  // [num_rows], at most the row's length; spans: row r's from counts_first[r] on
  float* marked = nullptr;               // [first[num_rows]]
  float value = std::numeric_limits<float>::infinity();
  bool peer_ties = false;  // as in TopK, on the CPU only
  // [num_rows]: the peer ranks so many in one call of torch.topk and takes the first counts[r]; null: no. CPU only
  const std::int32_t* ranked = nullptr;
  bool by_span = false;
  const std::int64_t* counts_first = nullptr;  // [num_rows + 1]
  KvRows kv = {};
  const std::int64_t* span_first = nullptr;  // [num_sequences + 1]
  const std::int32_t* span_begin = nullptr;  // [span_first[num_sequences]] ascending from 0

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = num_rows == 0 ? 0 : first[num_rows], all = by_span ? counts_first[num_rows] : num_rows;
    std::int64_t chosen = 0;
    for (std::int64_t i = 0; i < all; ++i) chosen += counts[i];
    return {.op = by_span ? "span_quota" : "mark_top",
            .rows = num_rows,
            .tokens = n,
            .outputs = chosen,
            .bytes = (by_span ? 8 : 4) * n + 4 * chosen,
            .flops = 2 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) {
    if (peer_ties || ranked != nullptr) refuse_on_gpu("mark_top with peer_ties");
    visit(counts, by_span ? counts_first[num_rows] : num_rows), visit(first, num_rows + 1);
    if (!by_span) return;
    const std::int64_t sequences = kv.num_sequences();
    visit(span_begin, span_first[sequences]), visit(span_first, sequences + 1), visit(counts_first, num_rows + 1), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t sequence = row / kv.kv_heads, span0 = by_span ? span_first[sequence] : 0;
    const std::int64_t spans = by_span ? span_first[sequence + 1] - span0 : 1;
    const std::int32_t* const count = counts + (by_span ? counts_first[row] : row);
    const auto len = static_cast<std::int32_t>(first[row + 1] - first[row]);
    std::int32_t begin = 0;
    for (std::int64_t j = 0; j < spans; ++j) {
      const std::int32_t end = j + 1 < spans ? tokens_before(row, span_begin[span0 + j + 1]) : len;
      mark(team, row, begin, end - begin, count[j]);
      begin = end;
    }
  }

 private:
  template <class Team>
  KVLAB_BODY void mark(const Team& team, std::int64_t row, std::int32_t begin, std::int32_t n, std::int32_t wanted) const {
    const std::int32_t count = wanted < n ? wanted : n;
    const float* const of_span = scores + first[row] + begin;
    float* const to = marked + first[row] + begin;
    const auto score = [&](std::int32_t i) { return of_span[i]; };
    const auto put = [&](std::int32_t i) { to[i] = !by_span || to[i] < value ? value : to[i]; };
    if (peer_ties || ranked != nullptr) {
      const std::int32_t all = ranked == nullptr ? 0 : ranked[row] < count ? count : ranked[row] < n ? ranked[row] : n;
      peer_best(team, n, count, all, score, put);
    } else {
      team.best(n, count, score, put);
    }
  }
  [[nodiscard]] KVLAB_BODY std::int32_t tokens_before(std::int64_t row, std::int32_t position) const {
    return count_first(kv.len[row], [&](std::int32_t i) { return kv.position[kv.slot(static_cast<std::int32_t>(row), i)] < position; });
  }
};
KVLAB_ROW_OP(MarkTop)

}  // namespace kvlab
