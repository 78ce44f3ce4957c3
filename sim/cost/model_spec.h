#pragma once

#include <cstdint>
#include <string>

namespace kvlab {

// Number formats of weights, activations and KV.
enum class Dtype : std::uint8_t { kFp16, kBf16, kFp32, kFp8, kInt8 };
[[nodiscard]] std::int64_t bits(Dtype dtype);
[[nodiscard]] const char* dtype_name(Dtype dtype);
[[nodiscard]] Dtype parse_dtype(const std::string& name, const std::string& place);  // InputError with the known names

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

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
  std::int64_t sliding_window = 0;  // tokens each query sees in every layer; 0: all
  bool gated_mlp = true, tied_embeddings = false, qk_norm = false;
  bool qkv_bias = false, dense_bias = false;  // dense_bias: of attention output and MLP
  bool learned_positions = false, norm_bias = false;
  Dtype dtype = Dtype::kBf16;  // of activations and, unless weight_bits says otherwise, weights
  Dtype kv_dtype = Dtype::kBf16;
  std::int64_t weight_bits = 16;  // of the matrices inside layers; embedding and head keep dtype

  [[nodiscard]] bool is_moe() const { return experts > 0; }
  [[nodiscard]] std::int64_t activation_bytes() const { return bits(dtype) / 8; }
};

// Reads a Hugging Face config.json, or YAML with the same keys. `name_or_path` is a file, a folder that holds config.json, or
// a name in `models_folder`. Keys that this program has no use for are ignored, as a Hugging Face file has dozens of them;
// InputError with file:line for a missing or senseless one, and for architectures whose cost the formulas do not cover.
ModelSpec load_model_spec(const std::string& name_or_path, const std::string& models_folder);

// The type its matrix products are computed in: 8-bit weights bring 8-bit activations, narrower ones are widened first.
Dtype compute_dtype(const ModelSpec& m);

// Parameters, counted exactly.
std::int64_t attention_parameters(const ModelSpec& m);  // of one layer, norms excluded
std::int64_t dense_mlp_parameters(const ModelSpec& m);  // of one layer: MLP, or router and shared expert
std::int64_t expert_parameters(const ModelSpec& m);     // of one layer: all routed experts
std::int64_t layer_parameters(const ModelSpec& m);
std::int64_t total_parameters(const ModelSpec& m);

// Bytes of weights on the fullest GPU when heads and MLPs are cut over tp ranks, experts over ep ranks (1: over tp), layers
// over pp stages.
std::int64_t weight_bytes(const ModelSpec& m, int tp = 1, int pp = 1, int ep = 1);
// Bytes of K and V of one token over all layers and KV heads.
std::int64_t kv_bytes_per_token(const ModelSpec& m);

}  // namespace kvlab
