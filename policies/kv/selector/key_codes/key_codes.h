#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Keys before RoPE as codebook indices (A2ATS). RoPE turns channel pairs (c, c + d/2) by position * frequency; frequencies are in CPU
// memory, null: no RoPE. The factor of RoPE scaling is not removed.
namespace kvlab {

//   kTrain   codebooks of all tokens by k-means++ (Arthur and Vassilvitskii 2007) and Lloyd's rounds under the distance
//            (k - c)^T H (k - c), H the Gram matrix of the queries scaled to a root mean square of 1, plus 1e-6 on its diagonal. A center
//            that lost its keys stays where it is
//   kAssign  codes of tokens [from[r], to[r]); ties go to the lower center
struct KeyCodes {
  enum class Kind : std::uint8_t { kTrain, kAssign };
  KvRows kv;
  Kind kind = Kind::kAssign;
  const float* frequencies = nullptr;   // [kv.num_sequences(), head_dim / 2]
  const std::int32_t* codes = nullptr;  // [kv.num_rows] centers; kTrain: at most the row's tokens. 0: the row is unchanged
  float* const* root = nullptr;         // [kv.num_rows] -> [head_dim, head_dim] L with H = L L^T; kTrain: out
  float* const* centers = nullptr;      // [kv.num_rows] -> [codes, head_dim] keys before RoPE; kTrain: out
  // kTrain
  std::int32_t rounds = 10;
  const std::int64_t* seeds = nullptr;  // [kv.num_rows]
  const float* const* gram = nullptr;   // [kv.num_rows] -> [head_dim, head_dim]
  // kAssign
  const std::int32_t *from = nullptr, *to = nullptr;  // [kv.num_rows]
  std::int32_t* const* code = nullptr;                // [kv.num_rows] -> [to] out
};
// Training costs nothing: the method trains before it serves. Codes count 2 bytes.
OpCall call(const KeyCodes&);
void run_cpu(const KeyCodes&);
void run_cuda(const KeyCodes&, CudaContext&);

}  // namespace kvlab
