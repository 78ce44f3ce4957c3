#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Statistical leverage of each token among those of its row: out_i = w_i x_i (B + sum_j (w_j + epsilon) x_j^T x_j)^-1 x_i^T, in double.
//   kKeys    x: rows of (K - column means) G, K before RoPE, G a Gaussian matrix [head_dim, sketch_dim] of variance 1 / sketch_dim from
//            `seed`, equal in all rows; w = 1, epsilon = 0; B = 1e-6 of the sum's mean diagonal. Compactor
//   kValues  x: values; w_i = exp(tau cos(mean, k_i)), divided by the largest in the row; B = I; mean over the group's query heads. Tokens
//            at positions below `sinks` are left out and get 0. CapKV
struct Leverage {
  enum class Kind : std::uint8_t { kKeys, kValues };
  KvRows kv;
  Kind kind = Kind::kKeys;
  const float* const* keys = nullptr;  // [num_sequences] -> [tokens, kv_heads, head_dim] by position; a CPU array
  std::int32_t sketch_dim = 48;        // at most head_dim; 0: G is the identity
  std::uint64_t seed = 0;
  const float* mean = nullptr;  // [num_sequences, kv_heads * group, head_dim] future query
  std::int32_t sinks = 0;
  float tau = 5.0F, epsilon = 1e-6F;
  float* out = nullptr;  // [kv.total()]

  [[nodiscard]] std::int32_t features() const { return kind == Kind::kKeys && sketch_dim > 0 ? sketch_dim : kv.head_dim; }
  // Entry [channel, feature] of G.
  [[nodiscard]] double sketch(std::int32_t channel, std::int32_t feature) const;
};
OpCall call(const Leverage&);
void run_cpu(const Leverage&);
void run_cuda(const Leverage&, CudaContext&);

}  // namespace kvlab
