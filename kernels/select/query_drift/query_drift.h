#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Detects that a sequence's query has turned away from the query of its last selection: refresh = 1 if the cosine of the two (all query
// heads of the layer as one vector) is below min_cosine. On a refresh the step's query becomes the reference. TokenSelect, Wu et al. 2024;
// Recycled Attention, Xu et al. 2024.
struct QueryDrift {
  enum Rule : std::int32_t { kNever = 0, kAlways = 1, kIfTurned = 2 };
  std::int32_t num_sequences = 0, width = 0;  // q_heads * head_dim
  const Queries* queries = nullptr;           // [num_sequences], the last one of each counts
  const std::int32_t* rule = nullptr;         // [num_sequences] known beforehand
  float min_cosine = 0.9F;
  float* const* reference = nullptr;  // [num_sequences] -> [width]
  std::int32_t* refresh = nullptr;    // [num_sequences] out, 0 or 1
};
// Queries and references that are compared are read in 2 and 4 bytes per value; a reference written unless the rule forbids it.
OpCall call(const QueryDrift&);
void run_cpu(const QueryDrift&);
void run_cuda(const QueryDrift&, CudaContext&);  // `refresh` is in CPU memory; waits for the stream.

}  // namespace kvlab
