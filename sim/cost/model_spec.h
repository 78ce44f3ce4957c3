#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ceil_div.h"
#include "serving/load_balance.h"

namespace kvlab {

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

  bool operator==(const LayerClass&) const = default;
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

  bool operator==(const AttentionClass&) const = default;
};

enum class Dtype : std::uint8_t { kFp16, kBf16, kFp32, kFp8, kInt8, kFp4 };
inline constexpr std::size_t kNumDtypes = 6;
[[nodiscard]] std::int64_t bits(Dtype dtype);
[[nodiscard]] const char* dtype_name(Dtype dtype);
[[nodiscard]] Dtype parse_dtype(const std::string& name, const std::string& place);  // throws InputError

// Storage, and compute types.
struct WeightFormat {
  double bits = 16;                        // per weight with scales, mean over the part
  std::array<double, kNumDtypes> share{};  // of FLOPs by type; sums to 1

  static WeightFormat of(Dtype dtype);
};

inline constexpr std::int64_t kMaxWidth = 1 << 20;

// Decoder-only.
struct ModelSpec {
  std::string name, file;
  std::string family;  // Hugging Face model_type
  std::int64_t layers = 0, hidden = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t intermediate = 0;  // 0 if every layer has experts
  std::int64_t vocabulary = 0, max_positions = 0;
  std::int64_t max_tokens = 0;                                                                     // after RoPE scaling; 0: unknown
  std::int64_t embedding_width = 0;                                                                // projected embedding (OPT-350M)
  std::int64_t experts = 0, experts_per_token = 0, moe_intermediate = 0, shared_intermediate = 0;  // 0: no experts
  std::vector<bool> expert_layers;  // [layers] if others are dense; empty: all alike
  std::int64_t sliding_window = 0;  // per query, every layer; 0: all
  // some_window: per query in kWindow layers. Empty: all alike.
  std::vector<AttentionKind> attention_kinds;  // [layers]
  std::int64_t some_window = 0;
  std::vector<LayerShape> layer_shapes;  // [layers]; empty: those above
  LatentAttention latent;
  LinearAttention linear;
  CompressedAttention compressed;
  SparseIndex index;
  std::vector<bool> sparse_layers, index_layers;  // [layers] use an index; compute one
  std::int64_t routed_hidden = 0;                 // width at experts; 0: hidden
  std::int64_t layer_extras = 0;                  // residual streams, per-layer inputs
  std::int64_t embedding_extras = 0;              // for per-layer inputs
  std::int64_t norms = 2, norm_parameters = 0,
               qk_norm_parameters = 0;  // per layer; one norm; query-key norms
  bool gated_mlp = true, tied_embeddings = false, qk_norm = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, expert_bias = false;  // expert_bias: and router
  bool shared_gate = false, has_sinks = false;
  bool attention_gate = false;  // in the queries' product
  bool head_gate = false;       // a number per head
  bool router_bias = false;     // a number per expert
  bool learned_positions = false, norm_bias = false;
  Dtype dtype = Dtype::kBf16;  // activations, and weights without a format
  Dtype kv_dtype = Dtype::kBf16;
  std::string quantization;
  WeightFormat attention_weights, mlp_weights, expert_weights, head_weights;  // mlp_weights: and shared experts
  std::vector<std::string> remarks;

  [[nodiscard]] bool is_moe() const { return experts > 0; }
  [[nodiscard]] bool has_experts(std::int64_t layer) const {
    return is_moe() && (expert_layers.empty() || expert_layers[static_cast<std::size_t>(layer)]);
  }
  [[nodiscard]] std::int64_t num_expert_layers() const;
  [[nodiscard]] std::int64_t expert_input() const { return routed_hidden > 0 ? routed_hidden : hidden; }
  [[nodiscard]] std::int64_t activation_bytes() const { return bits(dtype) / 8; }
};

// In order of first layers.
std::vector<LayerClass> layer_classes(const ModelSpec& m);
std::vector<AttentionClass> attention_classes(const ModelSpec& m);
LayerClass class_of_layer(const ModelSpec& m, std::int64_t layer);
// These layers have a window, others have none.
bool shows_window(const ModelSpec& m, const AttentionClass& layers);
// Those that see all tokens, if layers differ.
AttentionClass profiled_attention(const ModelSpec& m);

// Hugging Face config.json, or YAML with its keys: a file, folder, or name in `models_folder`. Has transformers' defaults; text_config
// inherits outer keys. Throws InputError with file:line for missing, bad or unknown keys and unpriced architectures.
// scheme: a named weight format; "none": the file's. Throws InputError for an unknown one, or another in the file.
ModelSpec load_model_spec(const std::string& name_or_path, const std::string& models_folder, const std::string& scheme = "none");

// Without quantized activations, weights are widened.
Dtype compute_dtype(const ModelSpec& m);

std::int64_t total_parameters(const ModelSpec& m);   // exact
std::int64_t active_parameters(const ModelSpec& m);  // without a token's unused experts
// On the fullest GPU: tp splits heads and MLPs, ep experts (1: tp), pp layers.
std::int64_t weight_bytes(const ModelSpec& m, int tp = 1, int pp = 1, int ep = 1);
// All layers with a cache, ignoring windows.
std::int64_t kv_bytes_per_token(const ModelSpec& m);
// Per token, on one of tp ranks.
double kv_bytes_of_layer(const ModelSpec& m, const LayerClass& layer, std::int64_t tp = 1);

// All tokens to every rank (vLLM's allgather_reducescatter), or each once per rank with one of its experts (deepep).
enum class ExpertExchange : std::uint8_t { kAllGather, kDeepEp };

// tp splits attention and dense layers, pp layers. dp > 1: ranks of tp x pp GPUs with own schedulers. ep = 1: experts are split over tp x
// dp GPUs; else whole experts on ep GPUs, and without dp ep / tp groups share a scheduler's tokens.
struct Parallel {
  int tp = 1, pp = 1, ep = 1, dp = 1;
  ExpertExchange exchange = ExpertExchange::kAllGather;  // dp > 1
  LoadBalance load_balance = LoadBalance::kVllm;         // dp > 1

  // Groups that share a scheduler's tokens.
  [[nodiscard]] int data_ranks() const { return dp > 1 ? 1 : std::max(1, ep / tp); }
  [[nodiscard]] int expert_ranks() const { return ep > 1 ? ep : tp * dp; }
  [[nodiscard]] int gpus() const { return (dp > 1 ? tp * dp : std::max(tp, ep)) * pp; }
  [[nodiscard]] int gpus_of_rank() const { return gpus() / dp; }
};

}  // namespace kvlab
