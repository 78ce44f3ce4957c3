#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Leverage of each token in its row's keys before RoPE: X = (K - column means) G, G a Gaussian matrix [head_dim, sketch_dim] of variance 1
// / sketch_dim from `seed`, equal in all rows; score x (X^T X + ridge I)^-1 x^T, ridge 1e-6 of the mean diagonal. Compactor, Chari and Van
// Durme 2025.
struct KeyLeverage {
  KvRows kv;
  const float* const* keys = nullptr;  // [num_sequences] -> [tokens, kv_heads, head_dim] by position
  std::int32_t sketch_dim = 48;        // at most head_dim; 0: X is the centred K
  std::uint64_t seed = 0;
  float* out = nullptr;  // [kv.total()]
};
OpCall call(const KeyLeverage&);
void run_cpu(const KeyLeverage&);
void run_cuda(const KeyLeverage&, CudaContext&);  // `keys` is a CPU array of device pointers.

}  // namespace kvlab
