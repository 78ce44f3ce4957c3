#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// refresh = 1 if the cosine between a query (all heads as one vector) and its reference is below min_cosine; then the query becomes the
// reference. TokenSelect, Wu et al. 2024; Recycled Attention, Xu et al. 2024.
struct QueryDrift {
  enum Rule : std::int32_t { kNever = 0, kAlways = 1, kIfTurned = 2 };
  std::int32_t num_sequences = 0, width = 0;  // q_heads * head_dim
  const Queries* queries = nullptr;           // [num_sequences], last query only
  const std::int32_t* rule = nullptr;         // [num_sequences]
  float min_cosine = 0.9F;
  float* const* reference = nullptr;  // [num_sequences] -> [width]
  std::int32_t* refresh = nullptr;    // [num_sequences] out
};
OpCall call(const QueryDrift&);
void run_cpu(const QueryDrift&);
void run_cuda(const QueryDrift&, CudaContext&);  // `refresh` in CPU memory: waits for the stream

}  // namespace kvlab
