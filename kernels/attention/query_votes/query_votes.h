#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention of queries to each token of their sequence, mean over the layer's query heads, in fp32. Weights rise evenly from 1 for the
// first vote to last_weight for the last. PyramidInfer, Yang et al. 2024, arXiv:2405.12532.
//   without groups: out[first[s] + i] = mean over all queries t and heads of w_t p_t[i]
//   with groups of group_tokens from position base[s] on: the recent[s] queries after a group's end add votes to a float in channel `word`
struct QueryVotes {
  KvRows kv;                         // rows of a sequence hold the same tokens
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  float last_weight = 1.0F;
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1]
  float* out = nullptr;                 // [first[kv.num_sequences()]]
  struct Groups {
    const std::int32_t *base = nullptr, *recent = nullptr;  // [kv.num_sequences()]
    std::int32_t group_tokens = 0, word = 0;
  };
  Groups groups = {};

  [[nodiscard]] bool has_groups() const { return groups.group_tokens > 0; }
  [[nodiscard]] std::int64_t tokens(std::int32_t sequence) const {
    return has_groups() ? kv.len[sequence * kv.kv_heads] : first[sequence + 1] - first[sequence];
  }
  // Weight difference of consecutive votes.
  [[nodiscard]] float rise(std::int32_t sequence) const {
    const std::int32_t votes = has_groups() ? groups.recent[sequence] : queries[sequence].count;
    return votes > 1 ? (last_weight - 1) / static_cast<float>(votes - 1) : 0.0F;
  }
};
OpCall call(const QueryVotes&);
void run_cpu(const QueryVotes&);
void run_cuda(const QueryVotes&, CudaContext&);

}  // namespace kvlab
