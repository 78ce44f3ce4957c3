#pragma once

#include <cstdint>

namespace kvlab {

// One query token per row against its cached keys and values; q, out [rows, q_heads, head_dim], K and V paged.
// Only totals matter: every kv token is read once per KV head, whatever row it belongs to.
struct AttentionDecodeShape {
  std::int64_t rows = 0;
  std::int64_t kv_tokens = 0;  // sum over rows of the tokens attended to, each row's own included
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // of one element
};

constexpr std::int64_t bytes(const AttentionDecodeShape& s) {
  return 2 * s.kv_tokens * s.kv_heads * s.head_dim * s.kv_bytes + 2 * s.rows * s.q_heads * s.head_dim * s.activation_bytes;
}
// q.k and p.v: a multiply and an add each per query head, kv token and channel.
constexpr std::int64_t flops(const AttentionDecodeShape& s) { return 4 * s.kv_tokens * s.q_heads * s.head_dim; }

}  // namespace kvlab
