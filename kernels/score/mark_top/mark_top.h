#pragma once

#include <cstdint>
#include <limits>

#include "kernels/ops.h"

namespace kvlab {

// The `counts[r]` tokens of largest score per row get `value` in `marked`. Ties go to the lower index, NaN counts as -infinity. `marked`
// may be `scores`.
struct MarkTop {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;   // [num_rows + 1]
  const float* scores = nullptr;         // [first[num_rows]]
  const std::int32_t* counts = nullptr;  // [num_rows], at most the row's length
  float* marked = nullptr;               // [first[num_rows]]
  float value = std::numeric_limits<float>::infinity();
  bool peer_ties = false;  // as in TopK
  // [num_rows]: a peer ranks this many in one call of torch.topk and takes the first counts[r]; null: not
  const std::int32_t* ranked = nullptr;
};
OpCall call(const MarkTop&);
void run_cpu(const MarkTop&);
void run_cuda(const MarkTop&, CudaContext&);  // without peer_ties

}  // namespace kvlab
