#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Copies queries into a ring per sequence: the query at position p becomes element p mod ring_tokens.
struct KeepQueries {
  std::int32_t num_sequences = 0, width = 0;  // q_heads * head_dim
  std::int32_t ring_tokens = 0;
  const Queries* queries = nullptr;  // [num_sequences], of each at most ring_tokens
  float* const* ring = nullptr;      // [num_sequences] -> [ring_tokens, width]
};
// Each value is read and written once.
OpCall call(const KeepQueries&);
void run_cpu(const KeepQueries&);

}  // namespace kvlab
