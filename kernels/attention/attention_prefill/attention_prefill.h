#pragma once

#include <algorithm>
#include <cstdint>

namespace kvlab {

struct AttentionPrefillShape {
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // per element
  std::int64_t window = 0;                          // in tokens; 0: none
};

// Query i (from 1) sees kv_before + i tokens, at most `window`.
constexpr std::int64_t attended_pairs(const AttentionPrefillShape& s) {
  const std::int64_t n = s.new_tokens;
  if (s.window == 0) return n * s.kv_before + n * (n + 1) / 2;
  const std::int64_t growing = std::clamp<std::int64_t>(s.window - s.kv_before, 0, n);  // queries that see everything
  return growing * s.kv_before + growing * (growing + 1) / 2 + (n - growing) * s.window;
}
// K and V are read once: rereads hit L2.
constexpr std::int64_t bytes(const AttentionPrefillShape& s) {
  const std::int64_t before = s.window == 0 ? s.kv_before : std::min(s.kv_before, s.window);
  const std::int64_t kv = s.new_tokens == 0 ? 0 : before + s.new_tokens;
  return 2 * kv * s.kv_heads * s.head_dim * s.kv_bytes + 2 * s.new_tokens * s.q_heads * s.head_dim * s.activation_bytes;
}
constexpr std::int64_t flops(const AttentionPrefillShape& s) { return 4 * attended_pairs(s) * s.q_heads * s.head_dim; }

// softmax(scale q k^T) v in float32; query i sees keys 0 .. kv_before + i, or their last `window`. Query heads from g * q_heads / kv_heads
// on share KV head g. Online softmax, as FlashAttention (Dao et al. 2022).
struct AttentionPrefill {
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;  // as k
  float* out = nullptr;      // as q
  float* scratch = nullptr;  // [scratch_floats(*this)]
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0F;       // 1 / sqrt(head_dim)
  std::int64_t window = 0;  // visible keys; 0: all
};

constexpr AttentionPrefillShape shape(const AttentionPrefill& a) {
  return {a.new_tokens, a.kv_before, a.q_heads, a.kv_heads, a.head_dim, 4, 4, a.window};
}
std::int64_t scratch_floats(const AttentionPrefill& a);
void run_cpu(const AttentionPrefill& a);

}  // namespace kvlab
