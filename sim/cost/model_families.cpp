#include "sim/cost/model_families.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/text.h"
#include "base/usage.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 40;

FamilySizes read_sizes(Params p) {
  const auto size = [&](const char* key) { return p.optional<std::int64_t>(key, 0, 1, kMost, "if config.json is silent"); };
  FamilySizes s;
  s.vocabulary = size("vocab_size");
  s.hidden = size("hidden_size");
  s.intermediate = size("intermediate_size");
  s.layers = size("num_hidden_layers");
  s.q_heads = size("num_attention_heads");
  s.kv_heads = size("num_key_value_heads");
  s.head_dim = size("head_dim");
  s.positions = size("max_position_embeddings");
  p.reject_unread();
  return s;
}

FamilyExperts read_experts(Params p) {
  const auto number = [&](const char* key, const char* meaning) { return p.optional<std::int64_t>(key, 0, 0, kMost, meaning); };
  FamilyExperts e;
  e.layers = p.choice("layers",
                      {{"none", ExpertLayers::kNone},
                       {"all", ExpertLayers::kAll},
                       {"sparse_step", ExpertLayers::kSparseStep},
                       {"first_dense", ExpertLayers::kFirstDense},
                       {"interleaved", ExpertLayers::kInterleaved}},
                      ExpertLayers::kNone, "which layers have experts, as config.json says");
  e.experts = number("number", "routed experts of a layer");
  e.per_token = number("per_token", "experts of a token");
  e.width = number("width", "of one expert; 0: intermediate_size");
  e.shared_width = number("shared_width", "shared_expert_intermediate_size");
  e.shared_experts = number("shared", "n_shared_experts");
  e.first_dense = number("first_dense", "layers before the first with experts");
  e.shared_gate = p.flag("shared_gate", false, "the shared expert has a gate");
  e.has_bias = p.flag("has_bias", false, "experts and router have biases");
  p.reject_unread();
  return e;
}

std::vector<std::pair<std::string, std::string>> read_only(Params p) {
  std::vector<std::pair<std::string, std::string>> only;
  for (const std::string& key : p.keys()) only.emplace_back(key, p.text(key, "the one value that is priced"));
  return only;
}

FamilyReader reader_of(Params& p) {
  std::vector<std::string> names{"none"};
  std::vector<FamilyReader> readers{nullptr};
  for (const std::vector<NamedReader>& some : {sparse_readers(), hybrid_readers(), varied_readers()})
    for (const NamedReader& one : some) {
      names.emplace_back(one.name);
      readers.push_back(one.read);
    }
  return readers[p.choice("reader", names, 0, "code that reads keys of its own")];
}

// The keys of latent attention belong to each family that has it.
std::vector<std::string> read_keys(Params& p, FamilyAttention attention) {
  std::vector<std::string> keys = p.words("keys", "keys of config.json that change a cost");
  if (attention == FamilyAttention::kLatent)
    for (const char* key : {"attention_bias", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
      keys.emplace_back(key);
  return keys;
}

void read_flags(Params& p, Family& f) {
  f.attention_gate = p.flag("attention_gate", f.attention_gate, "a gate of the attention's output");
  f.router_bias = p.flag("router_bias", f.router_bias, "a bias per expert");
  f.gated_mlp = p.flag("gated_mlp", f.gated_mlp, "the MLP has a gate");
  f.tied_embeddings = p.flag("tied_embeddings", f.tied_embeddings, "the head is the embedding");
  f.qkv_bias = p.flag("qkv_bias", f.qkv_bias, "biases of queries, keys and values");
  f.o_bias = p.flag("o_bias", f.o_bias, "a bias of the output projection");
  f.mlp_bias = p.flag("mlp_bias", f.mlp_bias, "biases of the MLP");
  f.bias_reaches_o = p.flag("bias_reaches_o", f.bias_reaches_o, "attention_bias is of the output projection too");
  f.norm_bias = p.flag("norm_bias", f.norm_bias, "norms have biases");
  f.learned_positions = p.flag("learned_positions", f.learned_positions, "a table of positions");
  f.norm_has_weights = p.flag("norm_has_weights", f.norm_has_weights, "norms have weights");
  f.has_sinks = p.flag("has_sinks", f.has_sinks, "a sink per head");
}

Family read_family(const std::string& name, Params& p) {
  Family f;
  f.name = name;
  f.sizes = read_sizes(p.optional_child("defaults", "defaults"));
  f.experts = read_experts(p.optional_child("experts", "experts"));
  f.attention =
      p.choice("attention",
               {{"heads", FamilyAttention::kHeads},
                {"latent", FamilyAttention::kLatent},
                {"gated_delta", FamilyAttention::kGatedDelta},
                {"lightning", FamilyAttention::kLightning}},
               FamilyAttention::kHeads, "K and V per head, a latent vector, or linear attention in layers that config.json lists");
  read_flags(p, f);
  f.norms = p.optional<std::int64_t>("norms", f.norms, 0, 64, "per layer, of hidden width");
  f.qk_norm = p.choice(
      "qk_norm",
      {{"none", QkNorm::kNone}, {"per_head", QkNorm::kPerHead}, {"wide", QkNorm::kWide}, {"without_weights", QkNorm::kWithoutWeights}},
      QkNorm::kNone, "norm of queries and keys");
  f.layer_extras = p.optional<std::int64_t>("layer_extras", 0, 0, kMost, "parameters of a layer beyond those of its parts");
  f.keys = read_keys(p, f.attention);
  f.only = read_only(p.optional_child("only", "only"));
  f.layer_types = p.words("layer_types", "of config.json, with those of the attention");
  f.own = reader_of(p);
  p.reject_unread();
  return f;
}

Params model_types() { return {load_config(shipped_profiles("model_types.yaml")), std::make_shared<Choices>(), "model types"}; }

// The value of model_type in a mapping of names; "": none.
std::string renamed(const char* mapping, const std::string& model_type) {
  Params types = model_types();
  Params names = types.optional_child(mapping, mapping);
  return names.has(model_type) ? names.text(model_type, "name") : "";
}

// The file of a family; "": none.
std::string file_of(const std::string& model_type) {
  if (model_type.empty() || model_type.find_first_of("/\\.") != std::string::npos) return "";
  std::string file = shipped_profiles("families/" + model_type + ".yaml");
  std::error_code error;
  return std::filesystem::is_regular_file(file, error) ? file : "";
}

}  // namespace

const Family& generic_family() {
  static const Family generic = [] {
    Params types = model_types();
    Params p = types.child("without_model_type", "without_model_type");
    return read_family("", p);
  }();
  return generic;
}

const Family* find_family(const std::string& model_type) {
  static std::mutex mutex;
  static std::map<std::string, Family> read;  // by file
  std::string name = model_type, file = file_of(name);
  if (file.empty()) file = file_of(name = renamed("same", model_type));
  if (file.empty()) return nullptr;
  UsageLog::note_file(file);
  const std::lock_guard lock(mutex);
  const auto known = read.find(file);
  if (known != read.end()) return &known->second;
  Params p(load_config(file), std::make_shared<Choices>(), "family '" + name + "'");
  return &read.emplace(file, read_family(name, p)).first->second;
}

std::string text_family_of(const std::string& model_type) { return renamed("text", model_type); }

std::vector<std::string> family_names() { return shipped_profile_names("families"); }

std::string why_not_priced(const std::string& model_type) {
  Params types = model_types();
  Params reasons = types.optional_child("not_priced", "not_priced");
  for (const std::string& why : reasons.keys()) {
    const std::vector<std::string> names = reasons.words(why, "model types");
    if (std::find(names.begin(), names.end(), model_type) != names.end()) return why;
  }
  return "";
}

}  // namespace kvlab
