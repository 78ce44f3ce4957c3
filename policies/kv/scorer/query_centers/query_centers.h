#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Adds up a sequence's queries before RoPE, per query head: the sum [head_dim], and for each pair of channels (f, f + head_dim / 2) that
// RoPE turns together, as a complex number, the sum of its sizes. Queries from position 0 on start the sums at 0. TriAttention, Mao et al.
// 2026.
struct QueryCenters {
  const Queries* queries = nullptr;  // [num_sequences] before RoPE, those to be added
  std::int32_t num_sequences = 0, q_heads = 0, head_dim = 0;
  float* const* sum = nullptr;   // [num_sequences] -> [q_heads, head_dim] in and out
  float* const* size = nullptr;  // [num_sequences] -> [q_heads, head_dim / 2] in and out
};
// Queries are read once in 2 bytes per value, the sums are read and written; per pair of channels two sums, and a root and four operations
// for the size. Sequences without queries cost nothing.
OpCall call(const QueryCenters&);
void run_cpu(const QueryCenters&);

}  // namespace kvlab
