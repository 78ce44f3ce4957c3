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

// Attention of one layer of one kind on one rank: the shape but for the batch, so that a step costs a few multiplications.
class AttentionWork {
 public:
  AttentionWork(const ModelSpec& m, const Parallel& p, const AttentionClass& layers);

  // kv_tokens: cached tokens that all decode rows see before their own; each row sees its own token too.
  [[nodiscard]] Work decode(std::int64_t rows, std::int64_t kv_tokens) const {
    if (kind_ == AttentionKind::kLatent) return latent_decode(rows, kv_tokens);
    if (kind_ == AttentionKind::kLinear) return {decode_flops(recurrent_, rows), decode_bytes(recurrent_, rows)};
    AttentionDecodeShape s = decode_;
    s.rows = rows;
    s.kv_tokens = kv_tokens + rows;
    return {flops(s), bytes(s)};
  }
  // The shape of a prompt without tokens, of attention with K and V per head.
  [[nodiscard]] const AttentionPrefillShape& prompt_shape() const { return prefill_; }
  [[nodiscard]] Work prefill(const PrefillPiece& piece) const {
    if (kind_ == AttentionKind::kLatent) return latent_prefill(piece);
    if (kind_ == AttentionKind::kLinear) return {prefill_flops(recurrent_, piece.new_tokens), prefill_bytes(recurrent_, piece.new_tokens)};
    AttentionPrefillShape s = prefill_;
    s.new_tokens = piece.new_tokens;
    s.kv_before = piece.kv_before;
    return {flops(s), bytes(s)};
  }

  // Latent attention has products beside the attention kernel: decode rows go into the latent space and back, and keys and values of
  // `tokens` tokens, cached ones included, are computed for prompts. Others have none.
  [[nodiscard]] bool has_ops() const { return kind_ == AttentionKind::kLatent; }
  [[nodiscard]] std::array<OpWork, 2> decode_ops(std::int64_t rows) const;
  [[nodiscard]] OpWork prefill_op(std::int64_t tokens) const;

 private:
  [[nodiscard]] Work latent_decode(std::int64_t rows, std::int64_t kv_tokens) const;
  [[nodiscard]] Work latent_prefill(const PrefillPiece& piece) const;

  AttentionKind kind_;
  AttentionDecodeShape decode_;
  AttentionPrefillShape prefill_;
  LatentDecodeShape latent_decode_;
  LatentPrefillShape latent_prefill_;
  RecurrentShape recurrent_;
  WeightFormat kv_b_format_;
};

// Cached tokens that the decode rows of a step see in these layers of the model.
inline std::int64_t kv_tokens_in(const AttentionClass& layers, const ModelSpec& m, const StepShape& shape) {
  return shows_window(m, layers) ? shape.in_window.kv_tokens : shape.decode_kv_tokens;
}

// Products and small operations of a layer's attention that depend on the number of tokens only: `tokens` of one rank.
void add_attention_ops(const ModelSpec& m, const Parallel& p, AttentionKind kind, std::int64_t tokens, std::vector<OpWork>& ops);

// The share of a policy's operations that falls on one rank: KV heads are cut over ranks, or repeated where there are fewer.
double policy_share(const ModelSpec& m, const Parallel& p);

}  // namespace kvlab
