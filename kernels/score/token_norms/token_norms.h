#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// A norm of every cached token's key or value, per KV head.
struct TokenNorms {
  enum class Of : std::uint8_t { kKey, kValue };
  enum class Kind : std::uint8_t { kL1, kL2, kL2Squared };
  KvRows kv;
  Of of = Of::kKey;
  Kind kind = Kind::kL2;
  float* out = nullptr;  // [kv.total()]
};
OpCall call(const TokenNorms&);
void run_cpu(const TokenNorms&);
void run_cuda(const TokenNorms&, CudaContext&);

}  // namespace kvlab
