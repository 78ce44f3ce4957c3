#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ceil_div.h"
#include "sim/cost/layer_kinds.h"

namespace kvlab {

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

// Hugging Face config.json, or YAML with its keys: a file, folder, or name in `models_folder`. Has transformers' defaults; text_config
// inherits outer keys. Throws InputError with file:line for missing, bad or unknown keys and unpriced architectures.
ModelSpec load_model_spec(const std::string& name_or_path, const std::string& models_folder);

// Without quantized activations, weights are widened.
Dtype compute_dtype(const ModelSpec& m);

std::int64_t total_parameters(const ModelSpec& m);   // exact
std::int64_t active_parameters(const ModelSpec& m);  // without a token's unused experts
// On the fullest GPU: tp splits heads and MLPs, ep experts (1: tp), pp layers.
std::int64_t weight_bytes(const ModelSpec& m, int tp = 1, int pp = 1, int ep = 1);
// In a layer that keeps all or a window of tokens, all KV heads.
std::int64_t kv_bytes_per_layer_token(const ModelSpec& m);
// All layers with a cache, ignoring windows.
std::int64_t kv_bytes_per_token(const ModelSpec& m);
// Per token, on one of tp ranks.
double kv_bytes_of_layer(const ModelSpec& m, const LayerClass& layer, std::int64_t tp = 1);

}  // namespace kvlab
