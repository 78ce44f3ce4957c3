#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Mean and covariance of queries before RoPE, per query head, times R (R mean, R covariance R^T): mean RoPE rotation (pairs i, i + d/2)
// over [future_begin, future_begin + num_future). Angles are float32 products. Expected Attention, Devoto et al. 2025.
struct QueryMoments {
  const Queries* queries = nullptr;  // [num_sequences] before RoPE
  std::int32_t num_sequences = 0, q_heads = 0, head_dim = 0;
  std::int32_t skip_tokens = 0;
  bool unbiased = false;  // divisor n - 1
  bool wants_covariance = true;
  const float* frequencies = nullptr;          // [num_sequences, head_dim / 2] radians per position, CPU memory; null: none
  float magnitude = 1;                         // factor of cosines and sines
  const std::int32_t* future_begin = nullptr;  // [num_sequences]
  std::int32_t num_future = 1;
  float* mean = nullptr;        // [num_sequences, q_heads, head_dim] out
  float* covariance = nullptr;  // [num_sequences, q_heads, head_dim, head_dim] out
};
OpCall call(const QueryMoments&);
void run_cpu(const QueryMoments&);
void run_cuda(const QueryMoments&, CudaContext&);

}  // namespace kvlab
