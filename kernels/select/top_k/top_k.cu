#include <algorithm>

#include "kernels/select/top_k/select_rows.h"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

void run_cuda(const TopK& a, CudaContext& cuda) {
  if (a.peer_ties) throw CudaError("top_k: peer_ties, the order that a CPU's library leaves equal scores in, runs on the CPU alone");
  std::vector<SelectRow> rows;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const auto n = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]);
    rows.push_back({a.scores + a.first[r], a.index + a.index_first[r], n, a.keep[r]});
  }
  select_indices(rows, cuda);
}

void run_cuda(const TopKPooled& a, CudaContext& cuda) {
  if (a.ties != TopKPooled::Ties::kLowerIndex)
    throw CudaError("top_k_pooled: the order that a CPU's library leaves equal scores in runs on the CPU alone");
  std::vector<PooledRow> rows;
  for (std::int32_t r = 0; r < a.num_pools * a.rows_per_pool; ++r) {
    const auto n = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]);
    rows.push_back({a.row_scores != nullptr ? a.row_scores[r] : a.scores + a.first[r], n,
                    a.floor_tokens == nullptr ? 0 : std::min(a.floor_tokens[r], n)});
  }
  const std::vector<std::int32_t> keep = count_pooled(rows, a.rows_per_pool, {a.budget, a.budget + a.num_pools}, cuda);
  std::copy(keep.begin(), keep.end(), a.keep);
}

}  // namespace kvlab
