#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Keys before RoPE as codebook indices: A2ATS, He et al. 2025, arXiv:2502.12665, sections 3.1 and 3.2. RoPE turns channel pairs (c, c +
// d/2) by position * frequency; frequencies are in CPU memory, null: no RoPE. The factor of RoPE scaling is not removed.
namespace kvlab {

// Codebooks by k-means++ (Arthur and Vassilvitskii 2007) and Lloyd's rounds under the distance (k - c)^T H (k - c), H the Gram matrix
// of the queries scaled to a root mean square of 1, plus 1e-6 on its diagonal. A center that lost its keys stays where it is.
struct TrainCodes {
  KvRows kv;
  const float* frequencies = nullptr;  // [kv.num_sequences(), head_dim / 2]
  std::int32_t rounds = 10;
  const std::int32_t* codes = nullptr;  // [kv.num_rows] centers, at most the row's tokens; 0: the row is unchanged
  const std::int64_t* seeds = nullptr;  // [kv.num_rows]
  const float* const* gram = nullptr;   // [kv.num_rows] -> [head_dim, head_dim]
  float* const* root = nullptr;         // [kv.num_rows] -> [head_dim, head_dim] out: L with H = L L^T
  float* const* centers = nullptr;      // [kv.num_rows] -> [codes, head_dim] out, keys before RoPE
};
// Costs nothing: the method trains before it serves.
OpCall call(const TrainCodes&);
void run_cpu(const TrainCodes&);
void run_cuda(const TrainCodes&, CudaContext&);

// Tokens [from[r], to[r]); ties go to the lower center.
struct AssignCodes {
  KvRows kv;
  const float* frequencies = nullptr;                 // [kv.num_sequences(), head_dim / 2]
  const std::int32_t* codes = nullptr;                // [kv.num_rows]
  const std::int32_t *from = nullptr, *to = nullptr;  // [kv.num_rows]
  const float* const* root = nullptr;
  const float* const* centers = nullptr;
  std::int32_t* const* code = nullptr;  // [kv.num_rows] -> [to]
};
// Codes count 2 bytes.
OpCall call(const AssignCodes&);
void run_cpu(const AssignCodes&);
void run_cuda(const AssignCodes&, CudaContext&);

}  // namespace kvlab
