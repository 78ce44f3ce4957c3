#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Anchor: the mean of the normalised keys of tokens [begin[r], end[r]) of the row.
//   out[i] = factor * cos(k_i, anchor)                  (cosine)
//   out[i] = factor * mean over the anchor's tokens j of cos(k_i, k_j) = factor * k_i . anchor / |k_i|
// Norms are at least 1e-8. No anchor token: 0.
struct AnchorCosine {
  KvRows kv;
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_rows]
  bool cosine = true;
  float factor = 1.0F;
  float* out = nullptr;  // [kv.total()]
};
OpCall call(const AnchorCosine&);
void run_cpu(const AnchorCosine&);
void run_cuda(const AnchorCosine&, CudaContext&);

}  // namespace kvlab
