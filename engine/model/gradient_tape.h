#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/model/transformer.h"

namespace kvlab {

// Backward pass of Phi = sum_t |h_t|^2, h_t before the last norm (KVgrad, openreview.net/forum?id=cg1wTCJjjk); weights and earlier tokens
// are constants.
class GradientTape final : public Recorder {
 public:
  // `inner`: receives all calls; may be null. The model outlives the tape.
  explicit GradientTape(const Transformer& model, Recorder* inner = nullptr);

  void on_hidden(std::int32_t layer, std::span<const float> hidden) override;
  void on_pre_rope(std::int32_t layer, std::span<const float> q, std::span<const float> k) override;
  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                    std::span<const float> out) override;
  void on_residual(std::int32_t stage, std::span<const float> residual) override;

  // [tokens, hidden_dim] after the layer's attention, valid during the call.
  using Seen = std::function<void(std::int32_t layer, std::span<const float> gradient)>;
  // Last layer first. `kv` ends with the pass's tokens.
  void backward(const KvState& kv, const Seen& seen) const;
  // [layers][tokens].
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
