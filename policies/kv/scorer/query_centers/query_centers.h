#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Statistics of a sequence's queries before RoPE, per query head: the mean [head_dim], and for each pair of channels (f, f + head_dim / 2)
// that RoPE turns together, as a complex number, the mean of its size. No queries: 0. TriAttention, Mao et al. 2026.
struct QueryCenters {
  const Queries* queries = nullptr;  // [num_sequences] before RoPE
  std::int32_t num_sequences = 0, q_heads = 0, head_dim = 0;
  float* mean = nullptr;  // [num_sequences, q_heads, head_dim] out
  float* size = nullptr;  // [num_sequences, q_heads, head_dim / 2] out
};
// Queries are read once in 2 bytes per value; per pair of channels two sums, and a root and three operations for the size.
OpCall call(const QueryCenters&);
void run_cpu(const QueryCenters&);

}  // namespace kvlab
