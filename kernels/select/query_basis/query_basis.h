#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Directions of largest queries per KV head; projected keys give approximate logits. InfiniGen, Lee et al. 2024, sections 4.2 and 4.3.
namespace kvlab {

// Over a chunk's queries and a row's heads: abs_sum[c] += |q_c|, and with wants_gram gram += q q^T. fresh[s] = 1 resets the sums first; 2
// skips s.
struct QueryGram {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0;
  const Queries* queries = nullptr;     // [num_rows / kv_heads]
  const std::int32_t* fresh = nullptr;  // [num_rows / kv_heads] 0, 1 or 2
  bool wants_gram = false;
  float* const* abs_sum = nullptr;  // [num_rows] -> [head_dim]
  float* const* gram = nullptr;     // [num_rows] -> [head_dim, head_dim]
};
OpCall call(const QueryGram&);
void run_cpu(const QueryGram&);
void run_cuda(const QueryGram&, CudaContext&);

// Channels by abs_sum (ties to the lower, ascending), or with `skew` leading eigenvectors of the Gram matrix.
struct ColumnBasis {
  std::int32_t num_rows = 0, kv_heads = 1, head_dim = 0, width = 0;
  const std::int32_t* chosen = nullptr;  // [num_rows / kv_heads] 0: unchanged
  bool skew = false;
  const float* const* abs_sum = nullptr;
  const float* const* gram = nullptr;
  float* const* basis = nullptr;  // [num_rows] -> [width, head_dim] out
};
// With skew 9 d^3 FLOPs, a symmetric eigensolver with vectors (Golub and Van Loan, section 8.3).
OpCall call(const ColumnBasis&);
void run_cpu(const ColumnBasis&);
void run_cuda(const ColumnBasis&, CudaContext&);

// Keys of tokens [from[r], len[r]): partial[i, j] = k_i . basis_j.
struct ProjectKeys {
  KvRows kv;
  std::int32_t width = 0;
  bool copies_channels = false;  // a choice of channels: no products
  const std::int32_t* from = nullptr;
  const float* const* basis = nullptr;  // [kv.num_rows] -> [width, head_dim]
  float* const* partial = nullptr;      // [kv.num_rows] -> [len, width]
};
OpCall call(const ProjectKeys&);
void run_cpu(const ProjectKeys&);
void run_cuda(const ProjectKeys&, CudaContext&);

}  // namespace kvlab
