#pragma once

#include "kernels/attention/attention_prefill/attention_prefill_cuda.h"

namespace kvlab {

// Attention that each cached token received from queries of its prompt, after run_cuda(prefill): exact softmax probabilities p_t^h[i], from
// its log_sum and a second product of queries and keys. For KV head row r and its token i
//   scores[first[r] + i]                             = factor * sum over query heads h of the group and queries t of p_t^h[i]
//   by_head: scores[first[r] * group + h * n + i]    = factor * sum over queries t of p_t^h[i],  n = tokens of the row
// over the prompt's last `last` queries (SnapKV's window, with factor 1 / (last * group) their mean) or all (H2O's column sums).
struct DevicePrefillScores {
  DevicePrefill prefill;                // its q, k, log_sum, pages and shapes; needs longest_kv and causal
  std::int32_t last = 0;                // 0: all
  const std::int64_t* first = nullptr;  // [prompts * kv_heads] where a row's scores begin: prefix sums of the rows' tokens
  float* scores = nullptr;              // of all rows' tokens
  bool by_head = false;
  bool adds = false;  // adds to scores, for further chunks of a prompt; false: overwrites
  float factor = 1.0F;
};

// Bytes for one prompt: keys, counted queries and their log_sum are read once, a score is written for every key.
constexpr std::int64_t bytes(const DevicePrefillScores& a, std::int64_t new_tokens, std::int64_t kv_before) {
  const std::int64_t queries = a.last > 0 && a.last < new_tokens ? a.last : new_tokens, keys = kv_before + new_tokens;
  const std::int64_t per_key =
      a.prefill.head_dim * element_bytes(a.prefill.type) + 4 * (a.by_head ? a.prefill.q_heads / a.prefill.kv_heads : 1);
  return keys * a.prefill.kv_heads * per_key + queries * a.prefill.q_heads * (a.prefill.head_dim * element_bytes(a.prefill.type) + 4);
}
// FLOPs of q.k, and two per pair for the sums.
constexpr std::int64_t flops(const DevicePrefillScores& a, std::int64_t new_tokens, std::int64_t kv_before) {
  const std::int64_t queries = a.last > 0 && a.last < new_tokens ? a.last : new_tokens;
  const AttentionPrefillShape s = shape(a.prefill, queries, kv_before + new_tokens - queries);
  return attended_pairs(s) * s.q_heads * (2 * s.head_dim + 2);
}
void run_cuda(const DevicePrefillScores& a, CudaContext& cuda);

}  // namespace kvlab
