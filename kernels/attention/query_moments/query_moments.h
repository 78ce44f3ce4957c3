#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Mean and covariance of a sequence's queries before RoPE, per query head, rotated to the positions of future queries: with R the mean RoPE
// rotation (pairs i, i + d/2) over positions [future_begin, future_begin + num_future), mean' = R mean, covariance' = R covariance R^T. The
// first `skip_tokens` queries do not count. Angles are float32 products of position and frequency, as models compute them. Expected
// Attention, Devoto et al. 2025.
struct QueryMoments {
  const Queries* queries = nullptr;  // [num_sequences] before RoPE
  std::int32_t num_sequences = 0, q_heads = 0, head_dim = 0;
  std::int32_t skip_tokens = 0;
  bool unbiased = false;  // covariance with divisor n - 1 instead of n
  bool wants_covariance = true;
  const float* frequencies = nullptr;          // [num_sequences, head_dim / 2] radians per position, in CPU memory; null: no rotation
  float magnitude = 1;                         // of the rotation: RoPE scaling multiplies cosines and sines by it
  const std::int32_t* future_begin = nullptr;  // [num_sequences]
  std::int32_t num_future = 1;
  float* mean = nullptr;        // [num_sequences, q_heads, head_dim] out
  float* covariance = nullptr;  // [num_sequences, q_heads, head_dim, head_dim] out
};
OpCall call(const QueryMoments&);
void run_cpu(const QueryMoments&);
void run_cuda(const QueryMoments&, CudaContext&);

}  // namespace kvlab
