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
[[nodiscard]] Dtype parse_dtype(const std::string& name, const std::string& place);  // throws InputError with the known names

// Storage of one part's matrices, and types they are multiplied in.
struct WeightFormat {
  double bits = 16;                        // per weight including scales, mean over the part
  std::array<double, kNumDtypes> share{};  // of FLOPs by type; sums to 1

  static WeightFormat of(Dtype dtype);
};

inline constexpr std::int64_t kMaxWidth = 1 << 20;  // limit for a model's file

// A decoder-only transformer.
struct ModelSpec {
  std::string name, file;
  std::string family;  // Hugging Face model_type
  std::int64_t layers = 0, hidden = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t intermediate = 0;  // dense MLP; 0 if every layer has experts
  std::int64_t vocabulary = 0, max_positions = 0;
  std::int64_t max_tokens = 0;       // max_positions after RoPE scaling; 0: unknown
  std::int64_t embedding_width = 0;  // differs from hidden if the embedding is projected (OPT-350M)
  std::int64_t experts = 0, experts_per_token = 0, moe_intermediate = 0, shared_intermediate = 0;  // 0: no experts
  std::vector<bool> expert_layers;  // [layers] layers with experts, if others are dense; empty: all alike
  std::int64_t sliding_window = 0;  // tokens per query in every layer; 0: all
  // Attention by layer; some_window: tokens per query in kWindow layers. Empty: all alike.
  std::vector<AttentionKind> attention_kinds;  // [layers]
  std::int64_t some_window = 0;
  std::vector<LayerShape> layer_shapes;  // [layers] if sizes differ; empty: those above
  LatentAttention latent;
  LinearAttention linear;
  CompressedAttention compressed;
  SparseIndex index;
  std::vector<bool> sparse_layers, index_layers;  // [layers] layers that use an index's tokens; layers that compute an index
  std::int64_t routed_hidden = 0;                 // input and output width of experts, between two products; 0: hidden
  std::int64_t layer_extras = 0;                  // per layer, outside attention and MLP: residual streams, per-layer inputs
  std::int64_t embedding_extras = 0;              // parameters at the embedding for per-layer inputs
  std::int64_t norms = 2, norm_parameters = 0,
               qk_norm_parameters = 0;  // per layer; of one norm of hidden width; of query-key norms
  bool gated_mlp = true, tied_embeddings = false, qk_norm = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, expert_bias = false;  // expert_bias: experts and router
  bool shared_gate = false, has_sinks = false;
  bool attention_gate = false;  // queries include a gate of equal width for attention's output
  bool head_gate = false;       // the same with one number per head
  bool router_bias = false;     // number per expert added when choosing experts
  bool learned_positions = false, norm_bias = false;
  Dtype dtype = Dtype::kBf16;  // activations, and weights without their own format
  Dtype kv_dtype = Dtype::kBf16;
  std::string quantization;
  WeightFormat attention_weights, mlp_weights, expert_weights, head_weights;  // mlp_weights: also shared experts
  std::vector<std::string> remarks;

  [[nodiscard]] bool is_moe() const { return experts > 0; }
  [[nodiscard]] bool has_experts(std::int64_t layer) const {
    return is_moe() && (expert_layers.empty() || expert_layers[static_cast<std::size_t>(layer)]);
  }
  [[nodiscard]] std::int64_t num_expert_layers() const;
  [[nodiscard]] std::int64_t expert_input() const { return routed_hidden > 0 ? routed_hidden : hidden; }
  [[nodiscard]] std::int64_t activation_bytes() const { return bits(dtype) / 8; }
};

// Reads a Hugging Face config.json, or YAML with its keys, from a file, a folder, or a name in `models_folder`. Absent keys have the
// defaults of the model_type's configuration class in transformers; text_config inherits outer keys. Throws InputError with file:line for
// missing, bad or unknown keys and unpriced architectures.
ModelSpec load_model_spec(const std::string& name_or_path, const std::string& models_folder);

// Fastest type of matrix products. Without quantized activations, weights are widened.
Dtype compute_dtype(const ModelSpec& m);

std::int64_t total_parameters(const ModelSpec& m);   // exact
std::int64_t active_parameters(const ModelSpec& m);  // without unused experts of a token
// Bytes on the fullest GPU: heads and MLPs split over tp ranks, experts over ep ranks (1: over tp), layers over pp stages.
std::int64_t weight_bytes(const ModelSpec& m, int tp = 1, int pp = 1, int ep = 1);
// Cache bytes per token in a layer that keeps all or a window of tokens, over all KV heads.
std::int64_t kv_bytes_per_layer_token(const ModelSpec& m);
// Over all layers with a cache, ignoring windows.
std::int64_t kv_bytes_per_token(const ModelSpec& m);
// Cache bytes per token in a layer of the class, on one of tp ranks.
double kv_bytes_of_layer(const ModelSpec& m, const LayerClass& layer, std::int64_t tp = 1);

}  // namespace kvlab
