#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config/params.h"
#include "sim/cost/model_file.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// If config.json is silent; 0: required, or from others.
struct FamilySizes {
  std::int64_t vocabulary = 0, hidden = 0, intermediate = 0, layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0, positions = 0;
};

enum class QkNorm : std::uint8_t { kNone, kPerHead, kWide, kWithoutWeights };  // kWide: over all heads

// kHeads: K and V per head; kGatedDelta, kLightning: linear in listed layers.
enum class FamilyAttention : std::uint8_t { kHeads, kLatent, kGatedDelta, kLightning };

enum class ExpertLayers : std::uint8_t { kNone, kAll, kSparseStep, kFirstDense, kInterleaved };

// If config.json is silent.
struct FamilyExperts {
  ExpertLayers layers = ExpertLayers::kNone;
  std::int64_t experts = 0, per_token = 0, width = 0;  // width 0: intermediate_size
  std::int64_t shared_width = 0, shared_experts = 0;   // n_shared_experts
  std::int64_t first_dense = 0;
  bool shared_gate = false, has_bias = false;  // has_bias: experts and router
};

// Reads unequal layers and other mixers, after the rest.
using FamilyReader = void (*)(Params& p, const ModelFile& file, ModelSpec& m);

// profiles/families/NAME.yaml: transformers' model_type, and the keys that change weights, KV or FLOPs.
struct Family {
  std::string name;
  FamilySizes sizes = {};
  FamilyExperts experts = {};
  FamilyAttention attention = FamilyAttention::kHeads;
  bool attention_gate = false, router_bias = false;
  bool gated_mlp = true, tied_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool bias_reaches_o = true;  // attention_bias includes the output projection
  bool norm_bias = false, learned_positions = false, norm_has_weights = true;
  bool has_sinks = false;
  std::int64_t norms = 2;  // per layer, of hidden width
  QkNorm qk_norm = QkNorm::kNone;
  std::int64_t layer_extras = 0;
  std::vector<std::string> keys = {};                          // beyond common ones
  std::vector<std::pair<std::string, std::string>> only = {};  // with the one priced value
  std::vector<std::string> layer_types = {};                   // allowed besides the attention's
  FamilyReader own = nullptr;
};

struct NamedReader {
  const char* name;
  FamilyReader read;
};
std::vector<NamedReader> hybrid_readers();
std::vector<NamedReader> varied_readers();

// Without model_type.
const Family& generic_family();
// nullptr: not known. Throws InputError for a wrong file.
const Family* find_family(const std::string& model_type);
// Text model_type of a vision-language model; "": not known.
std::string text_family_of(const std::string& model_type);
std::vector<std::string> family_names();
// "": not known.
std::string why_not_priced(const std::string& model_type);

// Never changes weights, KV or FLOPs.
bool is_harmless_model_key(std::string_view key);
// On images or sound; only in the outer part of a multimodal config.
bool is_multimodal_key(std::string_view key);
// True if `word` is in a list of words with one space between them.
bool has_word(std::string_view words, std::string_view word);

// False, 0, and empty text, list or mapping.
bool is_off(const std::string& yaml);

// Throws InputError with its place for an unread key that may change weights, KV or FLOPs.
void check_model_keys(Params& p, const Family& family);

// Required without a fallback.
std::int64_t read_size(Params& p, const char* key, std::int64_t fallback, std::int64_t max, const char* meaning);

// Throws InputError for a kind that the family lacks or that is not priced.
void check_layer_types(Params& p, const Family& family);

// Heads, latent and linear attention, kinds of layers, windows. Needs m.layers and m.hidden.
void read_attention(Params& p, const Family& family, const ModelFile& file, ModelSpec& m);

// Experts and dense MLPs. Needs m.layers and m.hidden.
void read_mlps(Params& p, const Family& family, ModelSpec& m);

}  // namespace kvlab
