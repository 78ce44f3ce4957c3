#include <algorithm>

#include "kernels/select/top_k/select_rows.h"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

void run_cuda(const TopK& a, CudaContext& cuda) {
  if (a.peer_ties) throw CudaError("top_k: peer_ties, the order that a CPU's library leaves equal scores in, runs on the CPU alone");
  const bool counts = a.kind == TopK::Kind::kCounts;
  std::vector<SelectRow> rows;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const auto n = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]);
    const std::int32_t floor = a.floor_tokens == nullptr ? 0 : std::min(a.floor_tokens[r], n);
    rows.push_back({a.row_scores != nullptr ? a.row_scores[r] : a.scores + a.first[r], counts ? nullptr : a.index + a.index_first[r], n,
                    counts ? floor : a.keep[r]});
  }
  if (!counts) return select_indices(rows, cuda);
  const std::vector<std::int32_t> count = count_pooled(rows, a.rows_per_pool, {a.budget, a.budget + a.num_rows / a.rows_per_pool}, cuda);
  std::copy(count.begin(), count.end(), a.count);
}

}  // namespace kvlab
