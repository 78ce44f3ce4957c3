#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Approximate logits from keys reduced to `width` directions (query_basis.h), relative to the best: z_h[i] = (q_h . basis) . partial_i /
// sqrt(d); scores[first[r] + i] = max over the row's query heads of z_h[i] - max_j z_h[j].
struct PartialScores {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2, width = 0;
  const Queries* queries = nullptr;       // [num_rows / kv_heads], the last of each
  const float* const* basis = nullptr;    // [num_rows] -> [width, head_dim]
  const float* const* partial = nullptr;  // [num_rows] -> [tokens, width]
  const std::int64_t* first = nullptr;    // [num_rows + 1] tokens scored: 0, 1, ... of the row
  float* scores = nullptr;                // [first[num_rows]] out
};
OpCall call(const PartialScores&);
void run_cpu(const PartialScores&);
void run_cuda(const PartialScores&, CudaContext&);

// Tokens that each KV head of a sequence takes: scores above -alpha, averaged over KV heads, rounded down, 1 to cap[r]. InfiniGen, Lee et
// al. 2024, section 4.3.
struct FetchCounts {
  std::int32_t num_rows = 0, kv_heads = 1;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;
  float alpha = 4.0F;
  const std::int32_t* cap = nullptr;  // [num_rows]
  std::int32_t* count = nullptr;      // [num_rows] out
};
OpCall call(const FetchCounts&);
void run_cpu(const FetchCounts&);
void run_cuda(const FetchCounts&, CudaContext&);  // `count` is in CPU memory; waits for the stream.

}  // namespace kvlab
