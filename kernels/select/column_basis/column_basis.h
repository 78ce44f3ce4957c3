#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Directions of largest queries per KV head, for approximate logits. InfiniGen, Lee et al. 2024, sections 4.2 and 4.3. Channels by abs_sum
// of QueryGram (ties to the lower, ascending), or with `skew` leading eigenvectors of its Gram matrix.
struct ColumnBasis {
  std::int32_t num_rows = 0, kv_heads = 1, head_dim = 0, width = 0;
  const std::int32_t* chosen = nullptr;  // [num_rows / kv_heads] 0: unchanged
  bool skew = false;
  const float* const* abs_sum = nullptr;
  const float* const* gram = nullptr;
  float* const* basis = nullptr;  // [num_rows] -> [width, head_dim] out
};
// With skew 9 d^3 FLOPs, a symmetric eigensolver (Golub and Van Loan, section 8.3).
OpCall call(const ColumnBasis&);
void run_cpu(const ColumnBasis&);
void run_cuda(const ColumnBasis&, CudaContext&);

}  // namespace kvlab
