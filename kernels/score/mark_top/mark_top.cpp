#include "kernels/score/mark_top/mark_top.h"

#include <algorithm>
#include <vector>

#include "kernels/select/top_k/take_best.h"

namespace kvlab {

// A selection like top_k.
OpCall call(const MarkTop& a) {
  const std::int64_t n = a.num_rows == 0 ? 0 : a.first[a.num_rows];
  std::int64_t marked = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r) marked += a.counts[r];
  return {.op = "mark_top", .rows = a.num_rows, .tokens = n, .outputs = marked, .bytes = 4 * n + 4 * marked, .flops = 2 * n};
}
KVLAB_WITHOUT_CUDA(MarkTop)

void run_cpu(const MarkTop& a) {
  std::vector<Candidate> row;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    row.clear();
    for (std::int64_t i = a.first[r]; i < a.first[r + 1]; ++i) row.push_back({rank_value(a.scores[i]), i});
    const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(a.counts[r], static_cast<std::int64_t>(row.size())));
    if (a.ranked != nullptr) {
      take_ordered(row, std::clamp(a.ranked[r], count, static_cast<std::int32_t>(row.size())));
    } else {
      take_best(row, count, a.peer_ties);
    }
    for (std::int32_t i = 0; i < count; ++i) a.marked[row[static_cast<std::size_t>(i)].at] = a.value;
  }
}

}  // namespace kvlab
