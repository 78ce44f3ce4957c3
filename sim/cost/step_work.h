#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/ceil_div.h"
#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/model/layer/layer.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/operations.h"

namespace kvlab {

// By kernels/, on one GPU.
struct OpWork {
  OpId op;
  std::int64_t flops = 0, bytes = 0;
  int times = 1;                         // per layer, or step outside layers
  const WeightFormat* format = nullptr;  // of weights; null: the model's type
  std::int64_t pairs = 0;                // (token, expert) pairs on this GPU
  std::int64_t out = 0, in = 0;          // product's columns and depth; 0: no product
};

struct Work {
  std::int64_t flops = 0, bytes = 0;
};

template <class Shape>
OpWork op_work(OpId op, const Shape& shape, int times = 1) {
  return {op, flops(shape), bytes(shape), times};
}

// y = x w^T with weights in `format`.
inline OpWork linear_work(OpId op, const ModelSpec& m, const WeightFormat& format, std::int64_t tokens, std::int64_t out, std::int64_t in) {
  const LinearShape shape{tokens, out, in, m.activation_bytes(), format.bits};
  return {op, flops(shape), bytes(shape), 1, &format, 0, out, in};
}

// Per layer and rank, without engine kernels.

// Absorbed decode rows: each cached vector of rank + rope values is every head's key, its first `rank` values the value.
struct LatentDecodeShape {
  std::int64_t rows = 0, kv_tokens = 0;  // kv_tokens: with their own
  std::int64_t q_heads = 0, rank = 0, rope = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // per element
};

constexpr std::int64_t bytes(const LatentDecodeShape& s) {
  return s.kv_tokens * (s.rank + s.rope) * s.kv_bytes + s.rows * s.q_heads * (2 * s.rank + s.rope) * s.activation_bytes;
}
constexpr std::int64_t flops(const LatentDecodeShape& s) { return 2 * s.kv_tokens * s.q_heads * (2 * s.rank + s.rope); }

// Per head, to or from latent space: [rows, heads, wide] by [heads, wide, rank].
struct AbsorbShape {
  std::int64_t rows = 0, q_heads = 0, wide = 0, rank = 0, activation_bytes = 2;
};

constexpr std::int64_t bytes(const AbsorbShape& s) {
  return s.rows == 0 ? 0 : s.q_heads * (s.wide * s.rank + s.rows * (s.wide + s.rank)) * s.activation_bytes;
}
constexpr std::int64_t flops(const AbsorbShape& s) { return 2 * s.rows * s.q_heads * s.wide * s.rank; }

// Keys and values per head are computed from cached vectors.
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

// In latent space; reads each cached vector once.
constexpr std::int64_t sparse_flops(const LatentPrefillShape& s, std::int64_t pairs, std::int64_t rank) {
  return 2 * pairs * s.q_heads * (2 * rank + s.rope);
}
constexpr std::int64_t sparse_bytes(const LatentPrefillShape& s, std::int64_t rank, std::int64_t kv_bytes) {
  if (s.new_tokens == 0) return 0;
  return (s.kv_before + s.new_tokens) * (rank + s.rope) * kv_bytes + s.new_tokens * s.q_heads * (2 * rank + s.rope) * s.activation_bytes;
}

// `heads` queries of `dim` channels score keys of `key_bytes`, one per `entry_tokens`.
struct IndexShape {
  std::int64_t heads = 0, dim = 0, key_bytes = 0, entry_tokens = 1;
};

constexpr std::int64_t index_flops(const IndexShape& s, std::int64_t pairs) { return pairs * (2 * s.heads * s.dim / s.entry_tokens); }
constexpr std::int64_t index_bytes(const IndexShape& s, std::int64_t kv_tokens, std::int64_t rows) {
  return kv_tokens * (s.key_bytes / s.entry_tokens) + rows * s.heads * s.dim;
}

// Vectors of `dim` channels, one per `entry_tokens` (0: none), and `window` tokens.
struct CompressedShape {
  std::int64_t q_heads = 0, dim = 0, entry_tokens = 0, window = 0, activation_bytes = 2, kv_bytes = 2;
};

constexpr std::int64_t share(const CompressedShape& s, std::int64_t whole) { return s.entry_tokens == 0 ? 0 : whole / s.entry_tokens; }
// pairs: rows x cached tokens; kv_tokens: distinct ones.
constexpr std::int64_t compressed_flops(const CompressedShape& s, std::int64_t pairs, std::int64_t rows) {
  return pairs * share(s, 4 * s.q_heads * s.dim) + rows * s.window * 4 * s.q_heads * s.dim;
}
constexpr std::int64_t compressed_bytes(const CompressedShape& s, std::int64_t kv_tokens, std::int64_t window_tokens, std::int64_t rows) {
  return kv_tokens * share(s, s.dim * s.kv_bytes) + window_tokens * s.dim * s.kv_bytes + 2 * rows * s.q_heads * s.dim * s.activation_bytes;
}

// Decode reads and writes a row's state; a prompt runs in chunks from state to state.
struct RecurrentShape {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t state_bytes = 0;  // per sequence, with the convolution's
  std::int64_t activation_bytes = 2;
  bool has_delta = false;
};

inline constexpr std::int64_t kDeltaChunk = 64, kDecayChunk = 256;  // tokens, as in published kernels

constexpr std::int64_t chunk_tokens(const RecurrentShape& s) { return s.has_delta ? kDeltaChunk : kDecayChunk; }
constexpr std::int64_t token_bytes(const RecurrentShape& s) {
  return 2 * (s.key_heads * s.key_dim + s.value_heads * s.value_dim) * s.activation_bytes;
}
constexpr std::int64_t decode_bytes(const RecurrentShape& s, std::int64_t rows) { return rows * (2 * s.state_bytes + token_bytes(s)); }
// Decay, outer product of key and value, product with the query; the delta rule also reads the value at the key.
constexpr std::int64_t decode_flops(const RecurrentShape& s, std::int64_t rows) {
  return rows * s.value_heads * s.key_dim * s.value_dim * (s.has_delta ? 7 : 5);
}
constexpr std::int64_t prefill_bytes(const RecurrentShape& s, std::int64_t tokens) {
  const std::int64_t states = 2 * ceil_div(tokens, chunk_tokens(s)) * s.value_heads * s.key_dim * s.value_dim;
  return tokens == 0 ? 0 : tokens * token_bytes(s) + states * s.activation_bytes + 2 * s.state_bytes;
}
// Within a chunk: scores and their product with values; delta rule: also key scores and two products with their inverse. Between chunks:
// state by queries, keys by values; delta rule: also state by keys.
constexpr std::int64_t prefill_flops(const RecurrentShape& s, std::int64_t tokens) {
  const std::int64_t within = chunk_tokens(s) * (s.has_delta ? 6 * s.key_dim + 4 * s.value_dim : 2 * s.key_dim + 2 * s.value_dim);
  return tokens * s.value_heads * (within + (s.has_delta ? 6 : 4) * s.key_dim * s.value_dim);
}

template <class Shape>
constexpr Shape of_piece(Shape s, const PrefillPiece& piece) {
  s.new_tokens = piece.new_tokens;
  s.kv_before = piece.kv_before;
  return s;
}

// One layer on one rank. Any batch costs a few multiplications.
class AttentionWork {
 public:
  AttentionWork(const ModelSpec& m, const Parallel& p, const AttentionClass& layers);

  // kv_tokens: cached tokens of all decode rows, without their own.
  [[nodiscard]] Work decode(std::int64_t rows, std::int64_t kv_tokens) const {
    return {rows * row_.flops + kv_tokens * token_.flops, rows * row_.bytes + kv_tokens * token_.bytes};
  }
  // The work that one more cached token adds.
  [[nodiscard]] const Work& decode_token() const { return token_; }
  // Without tokens, for K and V per head.
  [[nodiscard]] const AttentionPrefillShape& prompt_shape() const { return prefill_; }
  [[nodiscard]] Work prefill(const PrefillPiece& piece) const {
    if (kind_ == AttentionKind::kLatent) return latent_prefill(piece);
    if (kind_ == AttentionKind::kLinear) return {prefill_flops(recurrent_, piece.new_tokens), prefill_bytes(recurrent_, piece.new_tokens)};
    if (kind_ == AttentionKind::kIndex || kind_ == AttentionKind::kCompressed) return other_prefill(piece);
    const AttentionPrefillShape s = of_piece(prefill_, piece);
    return {flops(s), bytes(s)};
  }

  // Latent attention: decode rows go to the latent space and back; prompts need keys and values of `tokens`, cached ones included.
  [[nodiscard]] bool has_ops() const { return kind_ == AttentionKind::kLatent; }
  [[nodiscard]] std::array<OpWork, 2> decode_ops(std::int64_t rows) const;
  [[nodiscard]] OpWork prefill_op(std::int64_t tokens) const;
  // Sparse layers only move new tokens into the latent space.
  [[nodiscard]] std::int64_t op_tokens(const PrefillPiece& piece) const {
    return std::int64_t{piece.new_tokens} + (is_sparse_ ? 0 : piece.kv_before);
  }

 private:
  [[nodiscard]] Work decode_work(std::int64_t rows, std::int64_t kv_tokens) const;  // kv_tokens: with their own
  [[nodiscard]] Work latent_prefill(const PrefillPiece& piece) const;
  [[nodiscard]] Work other_prefill(const PrefillPiece& piece) const;

  AttentionKind kind_;
  bool is_sparse_;
  Work row_, token_;  // decode; linear for each kind
  AttentionPrefillShape prefill_;
  LatentDecodeShape latent_decode_;
  LatentPrefillShape latent_prefill_;
  RecurrentShape recurrent_;
  IndexShape index_;
  CompressedShape compressed_;
  WeightFormat kv_b_format_;
};

// Cached tokens seen by decode rows.
inline std::int64_t kv_tokens_in(const AttentionClass& layers, const ModelSpec& m, const StepShape& shape) {
  return shows_window(m, layers) ? shape.in_window.kv_tokens : shape.decode_kv_tokens;
}

// Adds operations that depend only on one rank's `tokens`.
void add_attention_ops(const ModelSpec& m, const Parallel& p, const LayerClass& layer, std::int64_t tokens, std::vector<OpWork>& ops);

// KV heads are split, or replicated if fewer than ranks.
double policy_share(const ModelSpec& m, const Parallel& p);

// Outside attention on one rank; with Parallel{} the whole replica.

// One layer for `tokens` of the whole replica, without experts that take tokens of other ranks (dp > 1).
void layer_ops(const ModelSpec& m, const Parallel& p, const LayerClass& layer, std::int64_t tokens, std::vector<OpWork>& ops);
// One layer, `tokens` of all ranks.
OpWork experts_op(const ModelSpec& m, const Parallel& p, std::int64_t tokens);
// Per step: embedding, final_layernorm.
void step_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops);
// Rows with logits: lm_head, sampler.
void head_ops(const ModelSpec& m, const Parallel& p, std::int64_t rows, std::vector<OpWork>& ops);

}  // namespace kvlab
