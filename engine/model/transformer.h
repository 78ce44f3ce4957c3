#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/big_array.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"

namespace kvlab {

struct TokenBatch {
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> positions;  // per id
};

// `count` numbers from `first` on.
std::vector<std::int32_t> consecutive(std::int64_t first, std::int64_t count);

class AttentionHost {
 public:
  virtual ~AttentionHost() = default;
  // Rows to compute, ascending; empty: all. Valid until the next call.
  struct Rewritten {
    std::span<const std::int32_t> rows, positions;
  };
  [[nodiscard]] virtual Rewritten rewritten(const TokenBatch& /*batch*/) { return {}; }
  // [n, hidden_dim], normed; [n, q_heads, head_dim], [n, kv_heads, head_dim] before RoPE, after q/k norm.
  virtual void before_rope(std::int32_t /*layer*/, const float* /*hidden*/, const float* /*q*/, const float* /*k*/) {}
  // q, out [n, q_heads, head_dim]; k, v [n, kv_heads, head_dim].
  virtual void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) = 0;
  // [n, hidden_dim]: stage 2 l before layer l's attention, 2 l + 1 before its MLP, 2 * layers before the last norm.
  virtual void on_residual(std::int32_t /*stage*/, const float* /*residual*/) {}
  // Tokens of each piece, which is computed as in a pass for it; empty: one piece.
  [[nodiscard]] virtual std::span<const std::int32_t> pieces() const { return {}; }
  // As rewritten(): rows that continue.
  [[nodiscard]] virtual std::span<const std::int32_t> going_on(std::int32_t /*layer*/) { return {}; }
  // Kept between passes: first touches are slow.
  [[nodiscard]] std::span<float> pass_memory(std::size_t n) { return {room_in(pass_memory_, n), n}; }

 private:
  BigArray<float> pass_memory_;
};

// Float32 on the CPU. The host applies ModelConfig::window.
class Transformer {
 public:
  Transformer(ModelConfig config, ModelWeights weights);
  static Transformer load(const std::string& dir);

  // [n, hidden_dim] after the last norm; 0 in rows that left. Positions may exceed max_tokens. Throws InputError for invalid ids.
  [[nodiscard]] std::vector<float> forward(const TokenBatch& batch, AttentionHost& host) const;
  // Ends at the last layer's host.attend(). Errors as forward().
  void scan(const TokenBatch& batch, AttentionHost& host, std::int32_t layers) const;
  [[nodiscard]] std::size_t pass_floats(std::int64_t tokens) const;
  // hidden [n, hidden_dim] to [n, vocab_size].
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

// For the last row of [n, vocab_size]; the lowest id among equals.
std::int32_t greedy_token(std::span<const float> logits, std::int32_t vocab_size);

// Uncut, post-RoPE, per layer [tokens, kv_heads, head_dim].
struct KvState {
  explicit KvState(const ModelConfig& config);
  void truncate(std::int64_t kept);

  std::vector<std::vector<float>> k, v;
  std::int64_t tokens = 0;
  std::int64_t token_floats;  // kv_heads * head_dim
};

// Tensors by layer, in this order, valid during the call.
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

// Appends `ids`. Hidden states [n, hidden_dim] or logits [n, vocab_size]. Errors as Transformer.
std::vector<float> forward(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder = nullptr);
std::vector<float> forward_logits(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder = nullptr);

}  // namespace kvlab
