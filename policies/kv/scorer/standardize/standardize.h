#pragma once

#include "kernels/ops.h"

namespace kvlab {

// Per pool of rows: mean 0 and standard deviation 1 (divisor n - 1). A pool of equal scores becomes 0.
struct Standardize {
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;  // [num_pools * rows_per_pool + 1]
  float* scores = nullptr;
};
OpCall call(const Standardize&);
void run_cpu(const Standardize&);
void run_cuda(const Standardize&, CudaContext&);

}  // namespace kvlab
