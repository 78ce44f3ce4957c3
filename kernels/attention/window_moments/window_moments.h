#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Spread of attention of w window queries over earlier tokens, fp32. p_t^h[i] = softmax over visible tokens; var has divisor w - 1 (w = 1:
// 0). CAKE, Qin et al. 2025, eq. 9, 3 and 4.
//   scores[i]   = mean over the group of (mean_t p_t[i] + gamma * var_t p_t[i]), 0 for the window's tokens
//   entropy[s]  = sum over query heads, queries and earlier tokens of -p log p
//   variance[s] = sum over query heads and earlier tokens of var_t p_t[i]
struct WindowMoments {
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  bool wants_scores = false, wants_spread = false;
  float gamma = 200.0F;
  float* scores = nullptr;    // [kv.total()]
  float* entropy = nullptr;   // [kv.num_sequences()]
  float* variance = nullptr;  // [kv.num_sequences()]
};
OpCall call(const WindowMoments&);
void run_cpu(const WindowMoments&);
void run_cuda(const WindowMoments&, CudaContext&);

}  // namespace kvlab
