#include "kernels/score/mark_top/mark_top.h"
#include "kernels/select/top_k/select_rows.h"

namespace kvlab {

void run_cuda(const MarkTop& a, CudaContext& cuda) {
  if (a.peer_ties || a.ranked != nullptr)
    throw CudaError("mark_top: peer_ties, the order that a CPU's library leaves equal scores in, runs on the CPU alone");
  std::vector<SelectRow> rows;
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    rows.push_back({a.scores + a.first[r], a.marked + a.first[r], static_cast<std::int32_t>(a.first[r + 1] - a.first[r]), a.counts[r]});
  mark_largest(rows, a.value, cuda);
}

}  // namespace kvlab
