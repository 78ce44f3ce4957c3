#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// out[b] = max of in[j], j in [b * stride - before, b * stride + span - before): LServe's logical pages (Yang et al. 2025), InfLLM v2's
// kernels.
struct BlockMax {
  std::int32_t num_rows = 0;
  std::int32_t stride = 1, before = 0, span = 1;
  const std::int64_t* in_first = nullptr;  // [num_rows + 1]
  const float* in = nullptr;
  const std::int64_t* first = nullptr;  // [num_rows + 1] blocks
  float* out = nullptr;
};
OpCall call(const BlockMax&);
void run_cpu(const BlockMax&);
void run_cuda(const BlockMax&, CudaContext&);

}  // namespace kvlab
