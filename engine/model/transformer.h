#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/weights.h"

namespace kvlab {

// Keys (post-RoPE) and values of one sequence, per layer [tokens, kv_heads, head_dim].
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
};

// A Llama-type decoder in float32 on the CPU kernels.
class Transformer {
 public:
  Transformer(ModelConfig config, ModelWeights weights);
  // Reads DIR/config.json and DIR/model.safetensors.
  static Transformer load(const std::string& dir);

  // Runs `ids` at the positions behind what `kv` holds, appends their keys and values, and answers logits [ids.size(), vocab_size].
  // Error (InputError): an id outside the vocabulary. Positions beyond max_tokens are computed like any other.
  std::vector<float> forward(std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder = nullptr) const;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const ModelWeights& weights() const { return weights_; }

 private:
  struct Activations;
  void attention(std::int32_t layer, KvState& kv, Activations& a, Recorder* recorder) const;
  void mlp(const LayerWeights& w, Activations& a) const;
  void fill_rotations(std::int64_t first, Activations& a) const;

  ModelConfig config_;
  ModelWeights weights_;
  std::vector<float> frequencies_;  // [head_dim / 2] radians per position
};

// The most likely token after the last of `logits` [n, vocab_size]; of equals the lowest id.
std::int32_t greedy_token(std::span<const float> logits, std::int32_t vocab_size);

}  // namespace kvlab
