#pragma once

#include <cstdint>

#include "base/ceil_div.h"

namespace kvlab {

// FLOPs and HBM bytes of attention that the engine has no kernels for, one layer on one rank.

// Latent attention of decode rows, absorbed: queries are brought into the latent space, where one cached vector of `rank` + `rope` values
// is the key of every head, and its first `rank` values are the value.
struct LatentDecodeShape {
  std::int64_t rows = 0, kv_tokens = 0;  // kv_tokens: seen by all rows, each row's own included
  std::int64_t q_heads = 0, rank = 0, rope = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // of one element
};

constexpr std::int64_t bytes(const LatentDecodeShape& s) {
  return s.kv_tokens * (s.rank + s.rope) * s.kv_bytes + s.rows * s.q_heads * (2 * s.rank + s.rope) * s.activation_bytes;
}
constexpr std::int64_t flops(const LatentDecodeShape& s) { return 2 * s.kv_tokens * s.q_heads * (2 * s.rank + s.rope); }

// A product per head that brings rows into the latent space or back: [rows, heads, wide] by [heads, wide, rank].
struct AbsorbShape {
  std::int64_t rows = 0, q_heads = 0, wide = 0, rank = 0, activation_bytes = 2;
};

constexpr std::int64_t bytes(const AbsorbShape& s) {
  return s.rows == 0 ? 0 : s.q_heads * (s.wide * s.rank + s.rows * (s.wide + s.rank)) * s.activation_bytes;
}
constexpr std::int64_t flops(const AbsorbShape& s) { return 2 * s.rows * s.q_heads * s.wide * s.rank; }

// Latent attention of a prompt, expanded: keys and values of each head were computed from the cached vectors.
struct LatentPrefillShape {
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, nope = 0, rope = 0, value = 0;
  std::int64_t activation_bytes = 2;
};

constexpr std::int64_t bytes(const LatentPrefillShape& s) {
  const std::int64_t kv = s.new_tokens == 0 ? 0 : s.kv_before + s.new_tokens;
  return (kv + s.new_tokens) * s.q_heads * (s.nope + s.rope + s.value) * s.activation_bytes;
}
constexpr std::int64_t flops(const LatentPrefillShape& s) {
  const std::int64_t pairs = s.new_tokens * s.kv_before + s.new_tokens * (s.new_tokens + 1) / 2;
  return 2 * pairs * s.q_heads * (s.nope + s.rope + s.value);
}

// Linear attention with a state of key_dim x value_dim per value head. A decode row reads its state and writes it; a prompt is computed in
// chunks, each of which leaves the state that the next begins with.
struct RecurrentShape {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t state_bytes = 0;  // of a sequence, the convolution's included
  std::int64_t activation_bytes = 2;
  bool has_delta = false;
};

inline constexpr std::int64_t kDeltaChunk = 64, kDecayChunk = 256;  // tokens, of the published kernels

constexpr std::int64_t chunk_tokens(const RecurrentShape& s) { return s.has_delta ? kDeltaChunk : kDecayChunk; }
// Queries, keys, values and output of one token.
constexpr std::int64_t token_bytes(const RecurrentShape& s) {
  return 2 * (s.key_heads * s.key_dim + s.value_heads * s.value_dim) * s.activation_bytes;
}
constexpr std::int64_t decode_bytes(const RecurrentShape& s, std::int64_t rows) { return rows * (2 * s.state_bytes + token_bytes(s)); }
// Decay, outer product of key and value, product with the query; the delta rule first reads the value under the key.
constexpr std::int64_t decode_flops(const RecurrentShape& s, std::int64_t rows) {
  return rows * s.value_heads * s.key_dim * s.value_dim * (s.has_delta ? 7 : 5);
}
constexpr std::int64_t prefill_bytes(const RecurrentShape& s, std::int64_t tokens) {
  const std::int64_t states = 2 * ceil_div(tokens, chunk_tokens(s)) * s.value_heads * s.key_dim * s.value_dim;
  return tokens == 0 ? 0 : tokens * token_bytes(s) + states * s.activation_bytes + 2 * s.state_bytes;
}
// Within a chunk: scores and their product with the values; with the delta rule also the scores of keys and the two products with their
// inverse. Between chunks: products of the state with queries and of keys with values; with the delta rule also with the keys.
constexpr std::int64_t prefill_flops(const RecurrentShape& s, std::int64_t tokens) {
  const std::int64_t within = chunk_tokens(s) * (s.has_delta ? 6 * s.key_dim + 4 * s.value_dim : 2 * s.key_dim + 2 * s.value_dim);
  return tokens * s.value_heads * (within + (s.has_delta ? 6 : 4) * s.key_dim * s.value_dim);
}

}  // namespace kvlab
