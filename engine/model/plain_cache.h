#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/transformer.h"

namespace kvlab {

// Uncut, post-RoPE, per layer [tokens, kv_heads, head_dim].
struct KvState {
  explicit KvState(const ModelConfig& config);
  void truncate(std::int64_t kept);

  std::vector<std::vector<float>> k, v;
  std::int64_t tokens = 0;
  std::int64_t token_floats;  // kv_heads * head_dim
};

// Tensors by layer, in this order. Spans are valid during the call.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void on_hidden(std::int32_t /*layer*/, std::span<const float> /*hidden*/) {}  // [n, hidden_dim], normed attention input
  virtual void on_pre_rope(std::int32_t /*layer*/, std::span<const float> /*q*/, std::span<const float> /*k*/) {}
  virtual void on_attention(std::int32_t /*layer*/, std::span<const float> /*q*/, std::span<const float> /*k*/,
                            std::span<const float> /*v*/, std::span<const float> /*out*/) {
  }  // q, out [n, q_heads, head_dim]; k, v [n, kv_heads, head_dim]
  virtual void on_residual(std::int32_t /*stage*/, std::span<const float> /*residual*/) {}  // as AttentionHost::on_residual
};

// Appends `ids`. Returns hidden states [n, hidden_dim] or logits [n, vocab_size]. Errors as Transformer.
std::vector<float> forward(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder = nullptr);
std::vector<float> forward_logits(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder = nullptr);

}  // namespace kvlab
