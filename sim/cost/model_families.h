#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvlab {

// Sizes that a configuration class has where config.json is silent; 0: it must say, or they follow from the others.
struct FamilySizes {
  std::int64_t vocabulary = 0, hidden = 0, intermediate = 0, layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0, positions = 0;
};

enum class QkNorm : std::uint8_t { kNone, kPerHead, kWide, kWithoutWeights };  // kWide: a weight per channel of all heads

// K and V per head, in some layers of a window; latent attention in every layer; linear attention in layers that the file lists.
enum class FamilyAttention : std::uint8_t { kHeads, kLatent, kGatedDelta, kLightning };

// Which layers have experts, and how the file spells that.
enum class ExpertLayers : std::uint8_t { kNone, kAll, kSparseStep, kFirstDense, kInterleaved };

// Routed experts where config.json is silent.
struct FamilyExperts {
  ExpertLayers layers = ExpertLayers::kNone;
  std::int64_t experts = 0, per_token = 0, width = 0;  // width 0: intermediate_size
  std::int64_t shared_width = 0, shared_experts = 0;   // of shared_expert_intermediate_size; of n_shared_experts
  std::int64_t first_dense = 0;
  bool shared_gate = false, has_bias = false;  // has_bias: experts and router
};

// One model_type: what Hugging Face transformers builds for it, and the keys of its config.json that change weights, KV or FLOPs.
struct Family {
  std::string_view name;
  FamilySizes sizes = {};
  FamilyExperts experts = {};
  FamilyAttention attention = FamilyAttention::kHeads;
  bool attention_gate = false, router_bias = false;  // ModelSpec::attention_gate, router_bias
  bool gated_mlp = true, tied_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool bias_reaches_o = true;  // attention_bias: of the output projection too
  bool norm_bias = false, learned_positions = false, norm_has_weights = true;
  bool has_sinks = false;
  std::int64_t norms = 2;  // per layer, of hidden width
  QkNorm qk_norm = QkNorm::kNone;
  std::vector<std::string_view> keys = {};                               // beyond those of every family
  std::vector<std::pair<std::string_view, std::string_view>> only = {};  // keys with the one value that is priced
};

// The family of a config.json without model_type, as this project's own files may be: a Llama with any of the keys, and no defaults.
const Family& generic_family();
// nullptr: not known. Text parts of vision-language models have the name of the model that they are.
const Family* find_family(std::string_view model_type);
// The model_type of a vision-language model's text where text_config does not say; "": not known.
std::string_view text_family_of(std::string_view model_type);
std::vector<std::string> family_names();
// Why a model_type that is known is not priced; "": not known.
std::string_view why_not_priced(std::string_view model_type);

}  // namespace kvlab
