#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/layer_work.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/op_work.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// One layer on one rank. Any batch costs a few multiplications.
class AttentionWork {
 public:
  AttentionWork(const ModelSpec& m, const Parallel& p, const AttentionClass& layers);

  // kv_tokens: cached tokens of all decode rows, without their own.
  [[nodiscard]] Work decode(std::int64_t rows, std::int64_t kv_tokens) const {
    if (kind_ == AttentionKind::kLatent) return latent_decode(rows, kv_tokens);
    if (kind_ == AttentionKind::kLinear) return {decode_flops(recurrent_, rows), decode_bytes(recurrent_, rows)};
    if (kind_ == AttentionKind::kIndex) return {index_flops(index_, kv_tokens + rows), index_bytes(index_, kv_tokens + rows, rows)};
    if (kind_ == AttentionKind::kCompressed) return compressed_decode(rows, kv_tokens);
    AttentionDecodeShape s = decode_;
    s.rows = rows;
    s.kv_tokens = kv_tokens + rows;
    return {flops(s), bytes(s)};
  }
  // Without tokens, for K and V per head.
  [[nodiscard]] const AttentionPrefillShape& prompt_shape() const { return prefill_; }
  [[nodiscard]] Work prefill(const PrefillPiece& piece) const {
    if (kind_ == AttentionKind::kLatent) return latent_prefill(piece);
    if (kind_ == AttentionKind::kLinear) return {prefill_flops(recurrent_, piece.new_tokens), prefill_bytes(recurrent_, piece.new_tokens)};
    if (kind_ == AttentionKind::kIndex || kind_ == AttentionKind::kCompressed) return other_prefill(piece);
    AttentionPrefillShape s = prefill_;
    s.new_tokens = piece.new_tokens;
    s.kv_before = piece.kv_before;
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
  [[nodiscard]] Work latent_decode(std::int64_t rows, std::int64_t kv_tokens) const;
  [[nodiscard]] Work latent_prefill(const PrefillPiece& piece) const;
  [[nodiscard]] Work compressed_decode(std::int64_t rows, std::int64_t kv_tokens) const {
    return {compressed_flops(compressed_, kv_tokens + rows, rows),
            compressed_bytes(compressed_, kv_tokens + rows, rows * compressed_.window, rows)};
  }
  [[nodiscard]] Work other_prefill(const PrefillPiece& piece) const;

  AttentionKind kind_;
  bool is_sparse_;
  AttentionDecodeShape decode_;
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

}  // namespace kvlab
