#include <algorithm>
#include <limits>

#include "kernels/select/top_k/select_rows.h"
#include "policies/kv/scorer/hold_largest/hold_largest.h"

namespace kvlab {

void run_cuda(const HoldLargest& a, CudaContext& cuda) {
  std::vector<SelectRow> rows;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const auto n = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]);
    rows.push_back({a.keys + a.first[r], a.scores + a.first[r], n, a.held(n, a.keep[r])});
  }
  mark_largest(rows, std::numeric_limits<float>::infinity(), cuda);
}

}  // namespace kvlab
