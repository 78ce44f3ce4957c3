#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Lowers scores of tokens with keys that repeat better ones. Sources are the `sources[r]` tokens of largest score; token j becomes s_j * (1
// - max(0, cos(k_j, k_src))), with the largest cosine over the sources other than j, or with the product over them. Infinite scores stay.
// Scores must not be negative.
struct Diversify {
  KvRows kv;
  const std::int32_t* sources = nullptr;  // [num_rows], at most the row's length
  bool product = false;
  float* scores = nullptr;  // [kv.total()]
};
OpCall call(const Diversify&);
void run_cpu(const Diversify&);
void run_cuda(const Diversify&, CudaContext&);

}  // namespace kvlab
