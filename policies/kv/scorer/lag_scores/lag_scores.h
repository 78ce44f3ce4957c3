#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Tokens [begin[r], begin[r] + partitions[r] * lag) of each row in partitions of `lag`. Each partition is seen relative to the
// next one: x~_c = (x_c - min_c) / (max_c - min_c + epsilon) with the minima and maxima over the next `lag` tokens, then the
// standard deviation of x~ over the channels (divisor d - 1), then the softmax over the partition; for keys and values, and
// their mean. With `ranks` the score is the token's rank in its partition / lag (0: lowest; ties: the earlier token is lower).
// The tokens of the last reference partition and all others keep their scores. LagKV, Liang et al. 2025.
struct LagScores {
  KvRows kv;
  const std::int32_t* begin = nullptr;       // [num_rows]
  const std::int32_t* partitions = nullptr;  // [num_rows] that are scored; begin + (partitions + 1) * lag <= len where it is > 0
  std::int32_t lag = 1;
  bool ranks = false;
  float epsilon = 0.0F;
  float* scores = nullptr;  // [kv.total()]
};
OpCall call(const LagScores&);
void run_cpu(const LagScores&);
void run_cuda(const LagScores&, CudaContext&);

}  // namespace kvlab
