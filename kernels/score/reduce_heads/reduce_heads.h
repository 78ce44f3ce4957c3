#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// One score for all KV heads of a sequence: tokens of the same position, or the i-th of each row, get the sum, the mean or the root of the
// sum over the heads that hold them. In place.
struct ReduceHeads {
  enum class Kind : std::uint8_t { kSum, kMean, kRootOfSum };
  KvRows kv;
  Kind kind = Kind::kMean;
  float* scores = nullptr;  // [kv.total()]
  bool by_position = true;  // false: by index; only the lengths of kv are read, so that rows may be of units other than tokens
};
OpCall call(const ReduceHeads&);
void run_cpu(const ReduceHeads&);
void run_cuda(const ReduceHeads&, CudaContext&);

}  // namespace kvlab
