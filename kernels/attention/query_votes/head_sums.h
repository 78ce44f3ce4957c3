#pragma once

#include "kernels/device/cuda/device_rows.h"

namespace kvlab {

// Weight of a vote: 1 + rise * (the query's position - begin). With groups `begin` is the end of the token's group, and only the `recent`
// queries from there on vote, on tokens from position `begin` on.
struct VoteWeight {
  std::int32_t begin = 0, group_tokens = 0, recent = 0;
  float rise = 0.0F;
};

// Sums over the queries of weight times probability (softmax over visible tokens), per query head: head g of row r from group * first[r] +
// g * len[r] on. weights [num_sequences]; null: all 1. In scratch memory of the current Frame.
float* sum_heads(const char* name, const KvRows& kv, const DeviceRows& on_gpu, const Queries* queries, const VoteWeight* weights,
                 CudaContext& cuda);

}  // namespace kvlab
