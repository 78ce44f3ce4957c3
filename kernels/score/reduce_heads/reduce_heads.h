#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// One score for all KV heads of a sequence: tokens of the same position get the sum, the mean or the root of the sum over the
// heads that hold them. In place.
struct ReduceHeads {
  enum class Kind : std::uint8_t { kSum, kMean, kRootOfSum };
  KvRows kv;
  Kind kind = Kind::kMean;
  float* scores = nullptr;  // [kv.total()]
};
OpCall call(const ReduceHeads&);
void run_cpu(const ReduceHeads&);
void run_cuda(const ReduceHeads&, CudaContext&);

}  // namespace kvlab
