#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// A query's vote for a token: 1 + rise * (query - begin). With groups `begin` is the end of the token's group, and the `recent` queries
// from there on vote, for tokens from position `begin` on; 0: no vote.
struct VoteWeight {
  std::int32_t begin = 0, group_tokens = 0, recent = 0;
  float rise = 0.0F;

  [[nodiscard]] KVLAB_BOTH float of(std::int32_t position, std::int32_t query) const {
    if (group_tokens == 0) return 1 + rise * static_cast<float>(query - begin);
    const std::int32_t after = query - begin - ((position - begin) / group_tokens + 1) * group_tokens;
    return position >= begin && after >= 0 && after < recent ? 1 + rise * static_cast<float>(after) : 0.0F;
  }
};

// Attention probabilities per token, fp32: p_t^h[i] = softmax of q.k_i / sqrt(d) up to the query's position. p_t[i]: mean, max or sum over
// h; then
//   sum    += sum_t w_t p_t[i]        (w_t = 1, or tokens visible to t: FINCH)
//   sum_sq += sum_t p_t[i]^2          max = max(max, max_t p_t[i])
// Outputs [kv.total()] are updated, for prompts in chunks. `votes`: instead means over a sequence's rows, which hold the same tokens; w_t
// rises evenly from 1 to last_weight. PyramidInfer, Yang et al. 2024, arXiv:2405.12532.
//   without groups: out[first[s] + i] = mean over t of w_t p_t[i]
//   with groups of group_tokens from position base[s] on: the recent[s] queries after a group's end add w_t p_t[i] in channel `word`
struct AttentionStats {
  enum class Group : std::uint8_t { kMean, kMax, kSum };
  struct Votes {
    float last_weight = 1.0F;
    const std::int64_t* first = nullptr;                    // [kv.num_sequences() + 1] in CPU memory
    float* out = nullptr;                                   // [first[kv.num_sequences()]]
    const std::int32_t *base = nullptr, *recent = nullptr;  // [kv.num_sequences()] in CPU memory
    std::int32_t group_tokens = 0, word = 0;
  };
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  Group group = Group::kMean;
  bool weigh_by_visible = false;
  std::int32_t visible_offset = 0;
  bool wants_sum = true, wants_sum_sq = false, wants_max = false;  // pointers are null on shapes
  float* sum = nullptr;
  float* sum_sq = nullptr;
  float* max = nullptr;
  Votes votes = {};

  [[nodiscard]] bool has_groups() const { return votes.group_tokens > 0; }
  [[nodiscard]] bool has_votes() const { return votes.first != nullptr || has_groups(); }
  [[nodiscard]] bool only_sums() const { return !wants_sum_sq && !wants_max && group != Group::kMax && !has_groups(); }
  [[nodiscard]] VoteWeight vote_weight(std::int32_t sequence) const {
    const Queries& q = queries[sequence];
    const std::int32_t recent = has_groups() ? votes.recent[sequence] : q.count;
    const float rise = recent > 1 ? (votes.last_weight - 1) / static_cast<float>(recent - 1) : 0.0F;
    return {has_groups() ? votes.base[sequence] : q.first_position, votes.group_tokens, recent, rise};
  }
};

OpCall call(const AttentionStats&);
void run_cpu(const AttentionStats&);
// CPU memory: queries without their data (float32). Tensor cores if K is f16 or bf16, page_tokens % 16 == 0 and head_dim is 64, 128 or 256:
// queries within 2^-17 (bf16) of float32.
void run_cuda(const AttentionStats&, CudaContext&);

}  // namespace kvlab
