#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Keeps the newest query of each sequence, all heads, for the next step. Sequences without a query are left alone.
struct KeepQueries {
  std::int32_t num_sequences = 0, width = 0;  // q_heads * head_dim
  const Queries* queries = nullptr;           // [num_sequences]
  float* const* to = nullptr;                 // [num_sequences] -> [width]
};
// Read and written at 2 bytes per value.
OpCall call(const KeepQueries&);
void run_cpu(const KeepQueries&);
void run_cuda(const KeepQueries&, CudaContext&);

}  // namespace kvlab
