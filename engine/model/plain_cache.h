#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/transformer.h"

namespace kvlab {

// Keys (post-RoPE) and values of one sequence, per layer [tokens, kv_heads, head_dim]: nothing is ever cut, and
// layers with a window pass over what is outside of it.
struct KvState {
  explicit KvState(const ModelConfig& config);
  // Forgets all but the first `kept` tokens.
  void truncate(std::int64_t kept);

  std::vector<std::vector<float>> k, v;
  std::int64_t tokens = 0;
  std::int64_t token_floats;  // kv_heads * head_dim
};

// Sees what a forward pass computes, layer by layer, in the order below. Spans hold the pass's own tokens only and last for the call.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void on_hidden(std::int32_t /*layer*/, std::span<const float> /*hidden*/) {}  // [n, hidden_dim], normed input of the attention
  virtual void on_pre_rope(std::int32_t /*layer*/, std::span<const float> /*q*/, std::span<const float> /*k*/) {}
  virtual void on_attention(std::int32_t /*layer*/, std::span<const float> /*q*/, std::span<const float> /*k*/,
                            std::span<const float> /*v*/, std::span<const float> /*out*/) {
  }  // q, out [n, q_heads, head_dim]; k, v [n, kv_heads, head_dim]
  virtual void on_residual(std::int32_t /*stage*/, std::span<const float> /*residual*/) {}  // as AttentionHost::on_residual
};

// Runs `ids` at the positions after those in `kv`, appends their keys and values, and returns hidden states [ids.size(), hidden_dim] or,
// for forward_logits, logits [ids.size(), vocab_size]. Error as Transformer::forward.
std::vector<float> forward(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder = nullptr);
std::vector<float> forward_logits(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder = nullptr);

}  // namespace kvlab
