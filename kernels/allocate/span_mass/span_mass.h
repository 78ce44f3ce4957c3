#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Share of the scores at both ends of rows: mass[p] = mean over the rows of pool p of factor * (sum of scores [0, head_end[r]) + sum of
// scores [tail_begin[r], tail_end[r])), tokens counted once, summed in double.
struct SpanMass {
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;  // [num_pools * rows_per_pool + 1]
  const float* scores = nullptr;        // [first[...]]
  const std::int32_t* head_end = nullptr;
  const std::int32_t *tail_begin = nullptr, *tail_end = nullptr;  // [num_pools * rows_per_pool]
  float factor = 1.0F;
  float* mass = nullptr;  // [num_pools] out
};
// Each score of the spans is read and added once.
OpCall call(const SpanMass&);
void run_cpu(const SpanMass&);
void run_cuda(const SpanMass&, CudaContext&);

}  // namespace kvlab
