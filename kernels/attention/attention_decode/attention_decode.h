#pragma once

#include <cstdint>

namespace kvlab {

// One query token per row against its paged cache.
struct AttentionDecodeShape {
  std::int64_t rows = 0;
  std::int64_t kv_tokens = 0;  // attended tokens of all rows with their own
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // per element
};

constexpr std::int64_t bytes(const AttentionDecodeShape& s) {
  return 2 * s.kv_tokens * s.kv_heads * s.head_dim * s.kv_bytes + 2 * s.rows * s.q_heads * s.head_dim * s.activation_bytes;
}
constexpr std::int64_t flops(const AttentionDecodeShape& s) { return 4 * s.kv_tokens * s.q_heads * s.head_dim; }

}  // namespace kvlab
