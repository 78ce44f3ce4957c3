#pragma once

#include <cstdint>

namespace kvlab {

// Gradient of AttentionPrefill for the new tokens; cached ones are constants. ds = scale p (dp - sum(p dp)) with dp = d_out v^T; dq = ds k;
// summed over queries and heads, dk = ds^T q, dv = p^T d_out. Float32.
struct AttentionGradient {
  const float* q = nullptr;      // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;      // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;      // as k
  const float* d_out = nullptr;  // as q
  float* dq = nullptr;           // as q
  float* dk = nullptr;           // [new_tokens, kv_heads, head_dim] out
  float* dv = nullptr;           // as dk
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0F;
  std::int64_t window = 0;  // visible keys; 0: all
};
void run_cpu(const AttentionGradient& a);

}  // namespace kvlab
