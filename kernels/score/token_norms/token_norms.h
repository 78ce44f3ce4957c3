#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Norm of every cached key or value; or factor * x . vector, with one vector per row.
struct TokenNorms {
  enum class Of : std::uint8_t { kKey, kValue };
  enum class Kind : std::uint8_t { kL1, kL2, kL2Squared, kDot };
  KvRows kv;
  Of of = Of::kKey;
  Kind kind = Kind::kL2;
  float* out = nullptr;            // [kv.total()]
  const float* vectors = nullptr;  // [kv.num_rows, head_dim] of kDot
  float factor = 1.0F;
};
OpCall call(const TokenNorms&);
void run_cpu(const TokenNorms&);
void run_cuda(const TokenNorms&, CudaContext&);

}  // namespace kvlab
