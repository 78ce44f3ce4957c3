#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention that a row's older tokens get from the sequence's last w = min(ring_tokens, end) queries. The older tokens are all but the last
// w of the row. Per query the products q.k / sqrt(d) are first reduced to their maximum over the group's query heads, then
// out[i] = mean over the queries of the softmax over the older tokens. The last w tokens get 0. R-KV, Cai et al. 2025, arXiv:2505.24133.
struct RingAttention {
  KvRows kv;
  std::int32_t ring_tokens = 0;
  const std::int32_t* end = nullptr;   // [kv.num_sequences()] one past the last query's position
  const float* const* ring = nullptr;  // [kv.num_sequences()] -> [ring_tokens, kv_heads * group, head_dim], KeepQueries
  float* out = nullptr;                // [kv.total()]
};
// Keys of older tokens are read once, the queries once per row; two products per query head, query and older token.
OpCall call(const RingAttention&);
void run_cpu(const RingAttention&);

}  // namespace kvlab
