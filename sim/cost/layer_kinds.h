#pragma once

#include <cstdint>
#include <vector>

namespace kvlab {

struct ModelSpec;

// Kept per layer: all K and V, the last K and V, one vector for all heads, a state, one vector for several tokens, nothing. kIndex scores
// tokens for sparse layers.
enum class AttentionKind : std::uint8_t { kFull, kWindow, kLatent, kLinear, kCompressed, kNone, kIndex };

// K and V per head.
struct HeadShape {
  std::int64_t q = 0, kv = 0, key_dim = 0, value_dim = 0;
  bool one_product = false;  // one product for both; both are cached (Gemma 4)
  bool has_own_kv = true;    // false: uses an earlier layer's K and V

  bool operator==(const HeadShape&) const = default;
  [[nodiscard]] std::int64_t q_width() const { return q * key_dim; }
  [[nodiscard]] std::int64_t out_width() const { return q * value_dim; }
  [[nodiscard]] std::int64_t cached() const { return has_own_kv ? kv * (key_dim + value_dim) : 0; }
  [[nodiscard]] std::int64_t projected() const { return !has_own_kv ? 0 : one_product ? kv * key_dim : cached(); }
  [[nodiscard]] std::int64_t mean_dim() const { return (key_dim + value_dim) / 2; }
};

struct LayerShape {
  HeadShape heads;
  std::int64_t mlp = 0;           // 0: none
  std::int64_t entry_tokens = 0;  // tokens per cached vector; 0: only the window

  bool operator==(const LayerShape&) const = default;
};

// Scores all tokens for sparse attention to the best (DeepSeek-V3.2, arXiv:2512.02556).
struct SparseIndex {
  std::int64_t heads = 0, dim = 0;  // of queries; a key of `dim` channels is cached per token
  std::int64_t tokens = 0;          // attended; 0: no such layers
  std::int64_t query_rank = 0;      // 0: hidden state, unweighted heads
  std::int64_t key_bytes = 0;       // 0: channels in the KV type

  [[nodiscard]] bool exists() const { return tokens > 0; }
};

// Attention to vectors of several tokens and to recent tokens (DeepSeek-V4). Keys and values are one vector.
struct CompressedAttention {
  std::int64_t q_rank = 0, dim = 0, out_groups = 0, out_rank = 0;
  std::int64_t window = 0;
  std::int64_t indexed = 0;  // per vector in index layers

  [[nodiscard]] bool exists() const { return dim > 0; }
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) caches kv_rank + rope values per token.
struct LatentAttention {
  std::int64_t q_rank = 0;                     // 0: one product
  std::int64_t kv_rank = 0;                    // 0: no such layers
  std::int64_t nope = 0, rope = 0, value = 0;  // per head: without and with RoPE; values

  [[nodiscard]] bool exists() const { return kv_rank > 0; }
  [[nodiscard]] std::int64_t cached() const { return kv_rank + rope; }
};

// A key_dim x value_dim state per value head.
struct LinearAttention {
  // Lightning attention (arXiv:2401.04658); Gated DeltaNet (arXiv:2412.06464); Mamba-2 (arXiv:2405.21060; keys are B and C); short
  // convolution without state (LFM2).
  enum class Rule : std::uint8_t { kDecay, kDelta, kStateSpace, kConvolution };
  Rule rule = Rule::kDecay;
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t state_value_bytes = 0;  // 0: as activations
  std::int64_t conv_tokens = 0;        // over queries, keys and values; 0: none
  std::int64_t in_columns = 0;         // from the hidden state; 0: queries, keys, values, gate, and two rates for kDelta
  std::int64_t inner = 0;              // parameters of low-rank gates
  std::int64_t vectors = 0;            // parameters except the convolution's, with in_columns

  [[nodiscard]] bool exists() const { return value_heads > 0; }
  [[nodiscard]] std::int64_t key_width() const { return key_heads * key_dim; }
  [[nodiscard]] std::int64_t value_width() const { return value_heads * value_dim; }
  [[nodiscard]] std::int64_t conv_width() const { return conv_tokens > 0 ? 2 * key_width() + value_width() : 0; }
  [[nodiscard]] std::int64_t projected_width() const {
    if (in_columns > 0) return in_columns;
    return 2 * key_width() + 2 * value_width() + (rule == Rule::kDelta ? 2 * value_heads : 0);
  }
  // Per sequence.
  [[nodiscard]] std::int64_t recurrent_values() const { return value_heads * key_dim * value_dim; }
  [[nodiscard]] std::int64_t conv_values() const { return (conv_tokens > 0 ? conv_tokens - 1 : 0) * conv_width(); }
  [[nodiscard]] std::int64_t state_values() const { return recurrent_values() + conv_values(); }
  // Per rank.
  [[nodiscard]] std::int64_t state_bytes(std::int64_t tp, std::int64_t activation_bytes) const {
    const std::int64_t own = state_value_bytes > 0 ? state_value_bytes : activation_bytes;
    return own == activation_bytes ? (state_values() + tp - 1) / tp * own
                                   : (recurrent_values() + tp - 1) / tp * own + (conv_values() + tp - 1) / tp * activation_bytes;
  }
};

// Layers of equal cost.
struct LayerClass {
  AttentionKind attention = AttentionKind::kFull;
  bool has_experts = false;
  std::int64_t count = 0;
  LayerShape shape{};
  bool is_sparse = false, has_index = false;  // attention by an index; computes the index

  [[nodiscard]] bool has_attention() const { return attention != AttentionKind::kNone; }
  [[nodiscard]] bool has_mlp() const { return has_experts || shape.mlp > 0; }
  [[nodiscard]] int parts() const { return (has_attention() ? 1 : 0) + (has_mlp() ? 1 : 0); }
};

// Layers of equal attention cost.
struct AttentionClass {
  AttentionKind kind = AttentionKind::kFull;
  std::int64_t window = 0;  // visible tokens; 0: all
  std::int64_t count = 0;
  LayerShape shape{};
  bool is_sparse = false;
};

// In order of first layers.
std::vector<LayerClass> layer_classes(const ModelSpec& m);
std::vector<AttentionClass> attention_classes(const ModelSpec& m);
LayerClass class_of_layer(const ModelSpec& m, std::int64_t layer);
// These layers have a window, others have none.
bool shows_window(const ModelSpec& m, const AttentionClass& layers);
// Those that see all tokens, if layers differ.
AttentionClass profiled_attention(const ModelSpec& m);

}  // namespace kvlab
