#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/big_array.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"

namespace kvlab {

// Tokens of one or several sequences, one sequence after another.
struct TokenBatch {
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> positions;  // of each
};

// Keeps keys and values, and lets queries attend to them. Called layer by layer with the tokens of the pass.
class AttentionHost {
 public:
  virtual ~AttentionHost() = default;
  // Before the first layer: the rows of the pass, ascending, that the model computes, and the positions that they take; empty: all, at
  // their own. Valid until the next call.
  struct Rewritten {
    std::span<const std::int32_t> rows, positions;
  };
  [[nodiscard]] virtual Rewritten rewritten(const TokenBatch& /*batch*/) { return {}; }
  // hidden [n, hidden_dim]: normed input of the attention; q [n, q_heads, head_dim], k [n, kv_heads, head_dim] without RoPE, but normed
  // where the model norms them.
  virtual void before_rope(std::int32_t /*layer*/, const float* /*hidden*/, const float* /*q*/, const float* /*k*/) {}
  // q, out [n, q_heads, head_dim]; k, v [n, kv_heads, head_dim].
  virtual void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) = 0;
  // The residual stream [n, hidden_dim] that the next norm reads: stage 2 l before layer l's attention, 2 l + 1 before its MLP, 2 layers
  // before the last norm.
  virtual void on_residual(std::int32_t /*stage*/, const float* /*residual*/) {}
  // After a layer: the rows of the pass, ascending, that continue to the next layer; empty: all. Valid until the next call.
  [[nodiscard]] virtual std::span<const std::int32_t> going_on(std::int32_t /*layer*/) { return {}; }
  // Room for n floats of a pass, the same for the next one: the first touch of fresh memory takes as long as a layer.
  [[nodiscard]] std::span<float> pass_memory(std::size_t n) { return {room_in(pass_memory_, n), n}; }

 private:
  BigArray<float> pass_memory_;
};

// A decoder of the Llama kind in float32 on the CPU kernels. It has no cache: positions are given, and the host keeps keys and values and
// applies the layers' windows (ModelConfig::window).
class Transformer {
 public:
  Transformer(ModelConfig config, ModelWeights weights);
  // Reads config.json and the safetensors files of a folder in Hugging Face layout.
  static Transformer load(const std::string& dir);

  // Hidden states [n, hidden_dim] after the last norm; 0 in rows that the last layer did not compute. Error (InputError): an id outside
  // the vocabulary. Positions beyond max_tokens are computed like any other.
  [[nodiscard]] std::vector<float> forward(const TokenBatch& batch, AttentionHost& host) const;
  // The first `layers` layers of such a pass. The last of them ends when host.attend() has its queries, keys and values; what it returns is
  // not used. Errors as forward().
  void scan(const TokenBatch& batch, AttentionHost& host, std::int32_t layers) const;
  // The floats that such a pass takes from pass_memory().
  [[nodiscard]] std::size_t pass_floats(std::int64_t tokens) const;
  // Logits [n, vocab_size] of hidden states [n, hidden_dim].
  [[nodiscard]] std::vector<float> logits(std::span<const float> hidden) const;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const ModelWeights& weights() const { return weights_; }

 private:
  struct Activations;
  void check(const TokenBatch& batch) const;
  void embed(const TokenBatch& batch, Activations& a) const;
  void layer(std::int32_t layer, AttentionHost& host, Activations& a) const;
  [[nodiscard]] std::vector<float> forward_rows(const TokenBatch& batch, AttentionHost& host) const;
  void queries_keys_values(std::int32_t layer, AttentionHost& host, Activations& a) const;
  void attention(std::int32_t layer, AttentionHost& host, Activations& a) const;
  void project(const LayerWeights& w, Activations& a) const;
  void mlp(const LayerWeights& w, Activations& a) const;

  ModelConfig config_;
  ModelWeights weights_;
  Rotary rotary_;
};

// The most likely token after the last of `logits` [n, vocab_size]; of equals the lowest id.
std::int32_t greedy_token(std::span<const float> logits, std::int32_t vocab_size);

}  // namespace kvlab
