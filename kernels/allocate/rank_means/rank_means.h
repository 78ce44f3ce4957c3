#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Mean over the pool's rows of the j-th largest score, up to the shortest row. KVCompose's composite tokens (Akulov et al. 2025). NaN
// counts as -infinity.
struct RankMeans {
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;      // [num_pools * rows_per_pool + 1]
  const float* scores = nullptr;            // [first[...]]
  const std::int64_t* out_first = nullptr;  // [num_pools + 1]
  float* out = nullptr;                     // [out_first[num_pools]]
};
// A sort: 2 log2(n) operations per score.
OpCall call(const RankMeans&);
void run_cpu(const RankMeans&);
void run_cuda(const RankMeans&, CudaContext&);

}  // namespace kvlab
