#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/model/plain_cache.h"

namespace kvlab {

// Records one forward pass on the CPU, and then runs the backward pass of Phi = sum_t |h_t|^2, where h_t is the residual stream of the
// pass's token t before the last norm (KVgrad, openreview.net/forum?id=cg1wTCJjjk). Gradients are taken with respect to activations alone:
// weights and the tokens cached before the pass are constants. It keeps 2 hidden_dim + q_heads * head_dim floats per token and layer, and
// computes the rest of the activations again.
class GradientTape final : public Recorder {
 public:
  // `inner` gets every call too; it may be null. The model outlives the tape.
  explicit GradientTape(const Transformer& model, Recorder* inner = nullptr);

  void on_hidden(std::int32_t layer, std::span<const float> hidden) override;
  void on_pre_rope(std::int32_t layer, std::span<const float> q, std::span<const float> k) override;
  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                    std::span<const float> out) override;
  void on_residual(std::int32_t stage, std::span<const float> residual) override;

  // Called for the last layer first with the gradient [tokens, hidden_dim] of Phi with respect to the residual stream between a layer's
  // attention and its MLP, which equals that with respect to the attention's output. The span lasts for the call.
  using Seen = std::function<void(std::int32_t layer, std::span<const float> gradient)>;
  // `kv` holds the pass's own keys and values at its end.
  void backward(const KvState& kv, const Seen& seen) const;
  // The norms of these gradients, [layers][tokens].
  [[nodiscard]] std::vector<std::vector<float>> norms(const KvState& kv) const;

 private:
  struct Sweep;
  [[nodiscard]] std::int64_t tokens() const;
  [[nodiscard]] const float* stage(std::int32_t s) const { return residual_[static_cast<std::size_t>(s)].data(); }
  void through_mlp(std::int32_t layer, Sweep& s) const;
  void through_attention(std::int32_t layer, const KvState& kv, Sweep& s) const;
  void through_head_norms(const LayerWeights& w, Sweep& s) const;

  const Transformer& model_;
  Recorder* inner_;
  std::vector<std::vector<float>> residual_;  // [2 layers + 1][tokens, hidden_dim]
  std::vector<std::vector<float>> q_;         // [layers][tokens, q_heads, head_dim] after RoPE
};

}  // namespace kvlab
