#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// The tokens that `Protect` would protect get the largest score of the sequence's other tokens in this layer (over all its KV heads)
// plus 1: they come first, and can still be averaged or multiplied.
struct ProtectAboveMax {
  KvRows kv;
  std::int32_t sinks = 0, recent = 0;
  const std::int32_t* end_position = nullptr;  // [num_sequences]
  float* scores = nullptr;                     // [kv.total()]
};
OpCall call(const ProtectAboveMax&);
void run_cpu(const ProtectAboveMax&);
void run_cuda(const ProtectAboveMax&, CudaContext&);

}  // namespace kvlab
