#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Leverage of values weighted by the fit of keys to each query head's mean future query:
//   w_i = exp(tau cos(mean, k_i)), divided by the largest in the row;   A = I + sum_i (w_i + epsilon) v_i v_i^T
//   out_i = mean over the group of w_i v_i^T A^-1 v_i
// over tokens at positions >= sinks; the others get 0.
struct ValueLeverage {
  KvRows kv;
  const float* mean = nullptr;  // [num_sequences, kv_heads * group, head_dim]
  std::int32_t sinks = 0;
  float tau = 5.0F, epsilon = 1e-6F;
  float* out = nullptr;  // [kv.total()]
};
OpCall call(const ValueLeverage&);
void run_cpu(const ValueLeverage&);
void run_cuda(const ValueLeverage&, CudaContext&);

}  // namespace kvlab
