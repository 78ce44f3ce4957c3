#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// out[i] = factor * k_i . x with one vector per row.
struct KeyDot {
  KvRows kv;
  const float* vectors = nullptr;  // [kv.num_rows, head_dim]
  float factor = 1.0F;
  float* out = nullptr;  // [kv.total()]
};
OpCall call(const KeyDot&);
void run_cpu(const KeyDot&);
void run_cuda(const KeyDot&, CudaContext&);

}  // namespace kvlab
