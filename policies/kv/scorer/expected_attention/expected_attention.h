#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Normally distributed queries: per query head
//   p = softmax over tokens at positions >= sinks of  k.mean / sqrt(d) + k^T covariance k / (2 d)
// and the mean of p over the group; 0 at positions < sinks.
struct ExpectedAttention {
  KvRows kv;
  const float* mean = nullptr;  // [num_sequences, kv_heads * group, head_dim]
  bool uses_covariance = true;
  const float* covariance = nullptr;  // [num_sequences, kv_heads * group, head_dim, head_dim]
  std::int32_t sinks = 0;
  float* out = nullptr;  // [kv.total()]
};
OpCall call(const ExpectedAttention&);
void run_cpu(const ExpectedAttention&);
void run_cuda(const ExpectedAttention&, CudaContext&);

}  // namespace kvlab
