#pragma once

#include <limits>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Scores of tokens at positions [begin, end) become `value`.
struct ProtectSpan {
  KvRows kv;
  std::int32_t begin = 0, end = 0;
  float* scores = nullptr;  // [kv.total()]
  float value = std::numeric_limits<float>::infinity();
};
OpCall call(const ProtectSpan&);
void run_cpu(const ProtectSpan&);
void run_cuda(const ProtectSpan&, CudaContext&);

}  // namespace kvlab
