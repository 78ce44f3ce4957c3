#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Unit i of every row of a pool (the KV heads of a sequence) gets the sum of unit i over the pool's rows that have one. In place.
struct SumRows {
  std::int32_t num_rows = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  float* scores = nullptr;              // [first[num_rows]]
};
// Scores are read and written once.
OpCall call(const SumRows&);
void run_cpu(const SumRows&);
void run_cuda(const SumRows&, CudaContext&);

}  // namespace kvlab
