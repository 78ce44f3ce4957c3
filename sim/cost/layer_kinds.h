#pragma once

#include <cstdint>
#include <vector>

namespace kvlab {

struct ModelSpec;

// A layer keeps of the tokens before: K and V of all, K and V of the last ones, one vector for all heads, or a state of constant size.
enum class AttentionKind : std::uint8_t { kFull, kWindow, kLatent, kLinear };

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): a token caches one vector of kv_rank + rope values that all heads share.
struct LatentAttention {
  std::int64_t q_rank = 0;                     // 0: queries come from the hidden state in one product
  std::int64_t kv_rank = 0;                    // 0: the model has no such layers
  std::int64_t nope = 0, rope = 0, value = 0;  // channels of a head: of queries and keys without RoPE and with it, of values

  [[nodiscard]] bool exists() const { return kv_rank > 0; }
  [[nodiscard]] std::int64_t cached() const { return kv_rank + rope; }
};

// Layers with a matrix of key_dim x value_dim for each value head in place of a cache.
struct LinearAttention {
  enum class Rule : std::uint8_t { kDecay, kDelta };  // Lightning attention (arXiv:2401.04658); Gated DeltaNet (arXiv:2412.06464)
  Rule rule = Rule::kDecay;
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t state_value_bytes = 0;  // of a value of the state; 0: as activations
  std::int64_t conv_tokens = 0;        // length of the causal convolution over queries, keys and values; 0: none

  [[nodiscard]] bool exists() const { return value_heads > 0; }
  [[nodiscard]] std::int64_t key_width() const { return key_heads * key_dim; }
  [[nodiscard]] std::int64_t value_width() const { return value_heads * value_dim; }
  [[nodiscard]] std::int64_t conv_width() const { return conv_tokens > 0 ? 2 * key_width() + value_width() : 0; }
  // Queries, keys, values and the output's gate; with the delta rule also two numbers per value head.
  [[nodiscard]] std::int64_t projected_width() const {
    return 2 * key_width() + 2 * value_width() + (rule == Rule::kDelta ? 2 * value_heads : 0);
  }
  // Values that a sequence keeps in one layer: the state, and what the convolution looks back on.
  [[nodiscard]] std::int64_t recurrent_values() const { return value_heads * key_dim * value_dim; }
  [[nodiscard]] std::int64_t conv_values() const { return (conv_tokens > 0 ? conv_tokens - 1 : 0) * conv_width(); }
  [[nodiscard]] std::int64_t state_values() const { return recurrent_values() + conv_values(); }
  // On one of `tp` ranks.
  [[nodiscard]] std::int64_t state_bytes(std::int64_t tp, std::int64_t activation_bytes) const {
    const std::int64_t own = state_value_bytes > 0 ? state_value_bytes : activation_bytes;
    return own == activation_bytes ? (state_values() + tp - 1) / tp * own
                                   : (recurrent_values() + tp - 1) / tp * own + (conv_values() + tp - 1) / tp * activation_bytes;
  }
};

// Layers that cost the same.
struct LayerClass {
  AttentionKind attention = AttentionKind::kFull;
  bool has_experts = false;
  std::int64_t count = 0;
};

// Layers whose attention costs the same.
struct AttentionClass {
  AttentionKind kind = AttentionKind::kFull;
  std::int64_t window = 0;  // tokens that a query sees, itself included; 0: all
  std::int64_t count = 0;
};

// In the order of their first layers. A model whose layers are all alike has one class.
std::vector<LayerClass> layer_classes(const ModelSpec& m);
std::vector<AttentionClass> attention_classes(const ModelSpec& m);
// The class of one layer, with count 1.
LayerClass class_of_layer(const ModelSpec& m, std::int64_t layer);
// True: these layers show a window of the tokens that other layers of the model see all of.
bool shows_window(const ModelSpec& m, const AttentionClass& layers);
// The layers that a profile's table of attention is of, which is one layer's: if layers differ, those that see all tokens.
AttentionClass profiled_attention(const ModelSpec& m);
std::int64_t layers_with(const ModelSpec& m, AttentionKind kind);

}  // namespace kvlab
