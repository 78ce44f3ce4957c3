#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Adds to each token's statistic the attention that later queries pay to it, mean over all query heads of the layer. From position base[s]
// on the tokens of sequence s form groups of group_tokens. A token gets votes from the recent[s] queries after the end of its group, t =
// 0, 1, ... of these with the weight 1 + (last_weight - 1) t / (recent[s] - 1). Attention is softmax(q.k / sqrt(d)) over the row's tokens
// that are not after the query, in fp32.
struct GroupVotes {
  KvRows kv;                           // rows of a sequence hold the same tokens
  const Queries* queries = nullptr;    // [kv.num_sequences()]
  const std::int32_t* base = nullptr;  // [kv.num_sequences()]
  const std::int32_t* recent = nullptr;
  std::int32_t group_tokens = 16;
  float last_weight = 1.0F;
  std::int32_t word = 0;  // channel of KvRows::words, a float
};
// Products per query head, query and visible token, the softmax as one more multiply-add; keys are read once per KV head.
OpCall call(const GroupVotes&);
void run_cpu(const GroupVotes&);

}  // namespace kvlab
