#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// out[index_first[r] + j] = scores[first[r] + index[index_first[r] + j]]. `out` may be `scores`: no score moves to a later index.
struct GatherScores {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;        // [num_rows + 1]
  const float* scores = nullptr;              // [first[num_rows]]
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;        // [index_first[num_rows]]
  float* out = nullptr;                       // [index_first[num_rows]]
};
OpCall call(const GatherScores&);
void run_cpu(const GatherScores&);
void run_cuda(const GatherScores&, CudaContext&);

}  // namespace kvlab
