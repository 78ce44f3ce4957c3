#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ceil_div.h"
#include "sim/cost/layer_kinds.h"

namespace kvlab {

// Number formats of weights, activations and KV.
enum class Dtype : std::uint8_t { kFp16, kBf16, kFp32, kFp8, kInt8, kFp4 };
inline constexpr std::size_t kNumDtypes = 6;
[[nodiscard]] std::int64_t bits(Dtype dtype);
[[nodiscard]] const char* dtype_name(Dtype dtype);
[[nodiscard]] Dtype parse_dtype(const std::string& name, const std::string& place);  // InputError with the known names

// How the matrices of one part of the model are stored, and the types that they are multiplied in.
struct WeightFormat {
  double bits = 16;                        // of a weight and its share of the scales: the mean over the part's matrices
  std::array<double, kNumDtypes> share{};  // of the FLOPs by type; sums to 1

  static WeightFormat of(Dtype dtype);
};

inline constexpr std::int64_t kMaxWidth = 1 << 20;  // of what a model's file may give

// The shape of a decoder-only transformer, as far as time and memory depend on it.
struct ModelSpec {
  std::string name, file;
  std::string family;  // Hugging Face model_type
  std::int64_t layers = 0, hidden = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t intermediate = 0;  // width of the dense MLP; 0 where every layer has experts
  std::int64_t vocabulary = 0, max_positions = 0;
  std::int64_t max_tokens = 0;       // the longest text: max_positions, or what RoPE scaling stretches them to; 0: not known
  std::int64_t embedding_width = 0;  // differs from hidden where the embedding is projected (OPT-350M)
  std::int64_t experts = 0, experts_per_token = 0, moe_intermediate = 0, shared_intermediate = 0;  // 0: no experts
  std::vector<bool> expert_layers;  // [layers] those with experts, of models that have dense layers too; empty: all are alike
  std::int64_t sliding_window = 0;  // tokens each query sees in every layer; 0: all
  // The kind of attention in each layer, and the tokens that a query sees in those with a window. Empty: all layers are alike.
  std::vector<AttentionKind> attention_kinds;  // [layers]
  std::int64_t some_window = 0;
  LatentAttention latent;
  LinearAttention linear;
  std::int64_t norms = 2, norm_parameters = 0, qk_norm_parameters = 0;  // of a layer; norm_parameters: of one of hidden width
  bool gated_mlp = true, tied_embeddings = false, qk_norm = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, expert_bias = false;  // expert_bias: of experts and router
  bool shared_gate = false, has_sinks = false;
  bool attention_gate = false;  // queries come with a gate of the same width for attention's output
  bool router_bias = false;     // a number per expert that the choice of experts adds
  bool learned_positions = false, norm_bias = false;
  Dtype dtype = Dtype::kBf16;  // of activations and, unless a weight format says otherwise, weights
  Dtype kv_dtype = Dtype::kBf16;
  std::string quantization;                                                   // how weights are quantized; "": not
  WeightFormat attention_weights, mlp_weights, expert_weights, head_weights;  // mlp_weights: of shared experts too
  std::vector<std::string> remarks;                                           // simplifications in the prices

  [[nodiscard]] bool is_moe() const { return experts > 0; }
  [[nodiscard]] bool has_experts(std::int64_t layer) const {
    return is_moe() && (expert_layers.empty() || expert_layers[static_cast<std::size_t>(layer)]);
  }
  [[nodiscard]] std::int64_t num_expert_layers() const;
  [[nodiscard]] std::int64_t activation_bytes() const { return bits(dtype) / 8; }
};

// Reads a Hugging Face config.json, or YAML with the same keys. `name_or_path` is a file, a folder that holds config.json, or
// a name in `models_folder`. A key that is absent has the default of its model_type's configuration class in transformers, and text_config
// takes what it lacks from the outer keys. InputError with file:line for a missing or senseless key, one that is not understood, and
// architectures whose cost the formulas do not cover.
ModelSpec load_model_spec(const std::string& name_or_path, const std::string& models_folder);

// The fastest type that matrix products are computed in: quantized activations have one of their own, weights alone are widened first.
Dtype compute_dtype(const ModelSpec& m);

std::int64_t total_parameters(const ModelSpec& m);   // exact
std::int64_t active_parameters(const ModelSpec& m);  // without the experts that a token is not sent to
// Bytes of weights on the fullest GPU when heads and MLPs are cut over tp ranks, experts over ep ranks (1: over tp), layers
// over pp stages.
std::int64_t weight_bytes(const ModelSpec& m, int tp = 1, int pp = 1, int ep = 1);
// Bytes that one token adds to the cache in one layer that keeps all tokens or a window of them, over all KV heads.
std::int64_t kv_bytes_per_layer_token(const ModelSpec& m);
// The same over all layers with a cache, as if no window was full.
std::int64_t kv_bytes_per_token(const ModelSpec& m);

}  // namespace kvlab
