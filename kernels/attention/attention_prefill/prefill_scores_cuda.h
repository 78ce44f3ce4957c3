#pragma once

#include "kernels/attention/attention_prefill/attention_prefill_cuda.h"

namespace kvlab {

// Attention that cached tokens received: p_t^h[i] from the prefill's log_sum, over the last `last` queries (SnapKV) or all (H2O). For KV
// head row r with n tokens and token i
//   scores[first[r] + i] = factor * sum over query heads h of the group and queries t of p_t^h[i]
//   by_head: scores[first[r] * group + h * n + i] = factor * sum over queries t of p_t^h[i]
struct DevicePrefillScores {
  DevicePrefill prefill;                // needs longest_kv and causal
  std::int32_t last = 0;                // 0: all
  const std::int64_t* first = nullptr;  // [prompts * kv_heads] prefix sums of row lengths
  float* scores = nullptr;
  bool by_head = false;
  bool adds = false;  // for further chunks of a prompt; false: overwrites
  float factor = 1.0F;
};

// For one prompt.
constexpr std::int64_t bytes(const DevicePrefillScores& a, std::int64_t new_tokens, std::int64_t kv_before) {
  const std::int64_t queries = a.last > 0 && a.last < new_tokens ? a.last : new_tokens, keys = kv_before + new_tokens;
  const std::int64_t per_key =
      a.prefill.head_dim * element_bytes(a.prefill.type) + 4 * (a.by_head ? a.prefill.q_heads / a.prefill.kv_heads : 1);
  return keys * a.prefill.kv_heads * per_key + queries * a.prefill.q_heads * (a.prefill.head_dim * element_bytes(a.prefill.type) + 4);
}
constexpr std::int64_t flops(const DevicePrefillScores& a, std::int64_t new_tokens, std::int64_t kv_before) {
  const std::int64_t queries = a.last > 0 && a.last < new_tokens ? a.last : new_tokens;
  const AttentionPrefillShape s = shape(a.prefill, queries, kv_before + new_tokens - queries);
  return attended_pairs(s) * s.q_heads * (2 * s.head_dim + 2);
}
void run_cuda(const DevicePrefillScores& a, CudaContext& cuda);

}  // namespace kvlab
