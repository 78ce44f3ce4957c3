#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Per KV head the top right-singular vector u of its group's queries, by power iteration on Q^T Q from their mean, with the sign that makes
// the mean of q.u positive. No queries, or all zero: u = 0. Q-Filters, Godey et al. 2025.
struct TopDirection {
  const Queries* queries = nullptr;  // [num_sequences]
  std::int32_t num_sequences = 0, kv_heads = 1, group = 1, head_dim = 0;
  std::int32_t iterations = 32;
  float* out = nullptr;  // [num_sequences * kv_heads, head_dim]
};
OpCall call(const TopDirection&);
void run_cpu(const TopDirection&);
void run_cuda(const TopDirection&, CudaContext&);

}  // namespace kvlab
