#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// *out[p] = variance (divisor: their number) of the finite scores of the pool's rows; 0 without any. Scores of protected tokens are not
// finite. With `entropy` the entropy of the scores as shares of their sum, over the logarithm of their number: 1 where all are equal, 0 of
// fewer than two; scores below 0 count as 0. Summed in double.
struct ScoreVariance {
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;  // [num_pools * rows_per_pool + 1]
  const float* scores = nullptr;        // [first[...]]
  float* const* out = nullptr;          // [num_pools] one float each
  bool entropy = false;
};
// Scores are read once, three operations each.
OpCall call(const ScoreVariance&);
void run_cpu(const ScoreVariance&);
void run_cuda(const ScoreVariance&, CudaContext&);  // The numbers that `out` points to are in CPU memory; waits for the stream.

}  // namespace kvlab
