#pragma once

#include <cstdint>

namespace kvlab {

// The gradient of AttentionPrefill, out = softmax(scale q k^T) v, with respect to the new tokens' q, k and v; the kv_before cached tokens
// are constants. With p the probabilities of a query and dp = d_out v^T: ds = scale p (dp - sum(p dp)), dq = ds k, and summed over the
// queries and query heads that see a token, dk = ds^T q and dv = p^T d_out. On the CPU in float32.
struct AttentionGradient {
  const float* q = nullptr;      // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;      // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;      // [kv_before + new_tokens, kv_heads, head_dim]
  const float* d_out = nullptr;  // [new_tokens, q_heads, head_dim]
  float* dq = nullptr;           // [new_tokens, q_heads, head_dim] out
  float* dk = nullptr;           // [new_tokens, kv_heads, head_dim] out
  float* dv = nullptr;           // [new_tokens, kv_heads, head_dim] out
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0F;
  std::int64_t window = 0;  // a query sees only its last `window` keys, its own included; 0: all
};
void run_cpu(const AttentionGradient& a);

}  // namespace kvlab
