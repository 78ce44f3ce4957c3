#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention that the given queries of a sequence pay to each of its tokens, mean over all query heads of the layer and over the queries,
// whose weights rise evenly from 1 for the first to last_weight for the last:
//   out[first[s] + i] = mean over t and h of w_t softmax_i(q_t^h . k_i / sqrt(d)), each query over the tokens not after it, in fp32.
// PyramidInfer, Yang et al. 2024, arXiv:2405.12532.
struct RecentAttention {
  KvRows kv;                         // rows of a sequence hold the same tokens
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  float last_weight = 1.0F;
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1]
  float* out = nullptr;                 // [first[kv.num_sequences()]]
};
// Products per query head, query and visible token, the softmax as one more multiply-add; keys are read once per KV head.
OpCall call(const RecentAttention&);
void run_cpu(const RecentAttention&);

}  // namespace kvlab
