#pragma once

#include <limits>

#include "kernels/rows/peer_best.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// The `counts[r]` tokens of largest score of each row get `value` in `marked`, which may be `scores`; the others stay. Ties go to the lower
// index, NaN counts as -infinity.
struct MarkTop {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;   // [num_rows + 1]
  const float* scores = nullptr;         // [first[num_rows]]
  const std::int32_t* counts = nullptr;  // [num_rows], at most the row's length
  float* marked = nullptr;               // [first[num_rows]]
  float value = std::numeric_limits<float>::infinity();
  bool peer_ties = false;  // as in TopK, on the CPU only
  // [num_rows] of a peer that ranks this many in one call of torch.topk and takes the first counts[r]; null: does not. On the CPU only
  const std::int32_t* ranked = nullptr;

  // Scores are read once, the marked ones written; a selection like top_k.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = num_rows == 0 ? 0 : first[num_rows];
    std::int64_t chosen = 0;
    for (std::int32_t r = 0; r < num_rows; ++r) chosen += counts[r];
    return {.op = "mark_top", .rows = num_rows, .tokens = n, .outputs = chosen, .bytes = 4 * n + 4 * chosen, .flops = 2 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) {
    if (peer_ties || ranked != nullptr) refuse_on_gpu("mark_top with peer_ties");
    visit(first, num_rows + 1), visit(counts, num_rows);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const auto n = static_cast<std::int32_t>(first[row + 1] - first[row]), count = counts[row] < n ? counts[row] : n;
    const float* const of_row = scores + first[row];
    const auto score = [&](std::int32_t i) { return of_row[i]; };
    const auto mark = [&](std::int32_t i) { marked[first[row] + i] = value; };
    if (peer_ties || ranked != nullptr) {
      const std::int32_t all = ranked == nullptr ? 0 : ranked[row] < count ? count : ranked[row] < n ? ranked[row] : n;
      peer_best(team, n, count, all, score, mark);
    } else {
      team.best(n, count, score, mark);
    }
  }
};
KVLAB_ROW_OP(MarkTop)

}  // namespace kvlab
