#include "engine/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/hugging_face.h"
#include "base/text.h"
#include "engine/model/json_config.h"
#include "serving/attention_windows.h"

namespace kvlab {

namespace {

using Kind = RopeScaling::Kind;

struct KindKeys {
  Kind kind;
  std::vector<std::string> keys;
};

const std::map<std::string, KindKeys>& rope_kinds() {
  static const std::map<std::string, KindKeys> kinds{
      {"default", {Kind::kNone, {}}},
      {"linear", {Kind::kLinear, {"factor", "original_max_position_embeddings"}}},
      {"dynamic", {Kind::kDynamic, {"factor", "original_max_position_embeddings"}}},
      {"llama3", {Kind::kLlama3, {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}}},
      {"yarn",
       {Kind::kYarn,
        {"factor", "original_max_position_embeddings", "attention_factor", "mscale", "mscale_all_dim", "attn_factor", "beta_fast",
         "beta_slow", "truncate", "finetuned"}}}};  // "finetuned" has no effect
  return kinds;
}

std::string kind_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : rope_kinds()) names.push_back('"' + name + '"');
  return join(names, ", ");
}

// "rope_type", in older files "type".
std::string kind_name(const JsonConfig& rope, bool may_be_absent) {
  const bool older = rope.has("type"), newer = rope.has("rope_type");
  if (may_be_absent && !older && !newer) return "default";
  if (older && newer && rope.at("type") != rope.at("rope_type"))
    rope.refuse("type", fmt::format("'rope_type' = {}, as beside it", rope.at("rope_type").dump()));
  const char* key = older ? "type" : "rope_type";
  const std::string name = rope.text(key);
  if (!rope_kinds().contains(name)) rope.refuse(key, kind_names());
  return name;
}

double at_least_one(const JsonConfig& rope, const std::string& key) {
  const double value = rope.positive(key);
  if (value < 1) rope.refuse(key, "a number from 1");
  return value;
}

// At 1 all channel pairs rotate alike.
double rope_base(const JsonConfig& config) {
  const double base = config.positive("rope_theta");
  if (!(base > 1)) config.refuse("rope_theta", "a number above 1");
  return base;
}

// 0 if absent.
double from_zero(const JsonConfig& rope, const std::string& key) {
  if (!rope.has(key)) return 0;
  const bool is_number = rope.at(key).is_number();
  const double value = is_number ? rope.at(key).get<double>() : -1;
  if (!(value >= 0) || !std::isfinite(value)) rope.refuse(key, "a number from 0");
  return value;
}

void read_yarn(const JsonConfig& rope, RopeScaling& s) {
  s.beta_fast = rope.positive_or("beta_fast", 32);
  s.beta_slow = rope.positive_or("beta_slow", 1);
  if (s.beta_fast < s.beta_slow) rope.refuse("beta_fast", fmt::format("a number from 'beta_slow' = {}", s.beta_slow));
  // transformers reads null as false, a missing key as true.
  if (rope.given("truncate") != nullptr && !rope.has("truncate")) rope.refuse("truncate", "true or false");
  s.truncate = rope.flag_or("truncate", true);
  // 0: absent, as in transformers.
  const double m = from_zero(rope, "mscale"), m_all_dim = from_zero(rope, "mscale_all_dim");
  s.attention_factor = yarn_attention_factor(s.factor, m, m_all_dim);
  s.attention_factor = rope.positive_or("attention_factor", s.attention_factor);
  // Used by vLLM, ignored by transformers.
  if (rope.has("attn_factor"))
    rope.refuse("attn_factor", fmt::format("no such key, as transformers reads it (queries and keys scaled by {:.10g}), or in its place "
                                           "\"attention_factor\": {:.10g}, as vLLM reads it",
                                           s.attention_factor, yarn_attention_factor(s.factor, 0, 0) * rope.positive("attn_factor")));
}

void read_llama3(const JsonConfig& rope, RopeScaling& s) {
  s.low_freq_factor = rope.positive("low_freq_factor");
  s.high_freq_factor = rope.positive("high_freq_factor");
  if (!(s.high_freq_factor > s.low_freq_factor))
    rope.refuse("high_freq_factor", fmt::format("a number above 'low_freq_factor' = {}", s.low_freq_factor));
}

RopeScaling read_scaling(const JsonConfig& rope, const ModelConfig& c, const std::string& name) {
  constexpr std::int32_t kMostTokens = 1 << 28;
  RopeScaling s;
  s.kind = rope_kinds().at(name).kind;
  std::vector<std::string> known = rope_kinds().at(name).keys;
  known.insert(known.end(), {"rope_type", "type", "rope_theta", "partial_rotary_factor"});
  rope.only("partial_rotary_factor", 1);
  rope.only_keys(known);
  if (s.kind == Kind::kNone) return s;
  s.factor = at_least_one(rope, "factor");
  if (s.kind == Kind::kLlama3) s.original_tokens = rope.integer("original_max_position_embeddings", kMostTokens);
  if (s.kind != Kind::kLlama3) s.original_tokens = rope.integer_or("original_max_position_embeddings", c.max_tokens, kMostTokens);
  if (s.kind == Kind::kLlama3) read_llama3(rope, s);
  if (s.kind == Kind::kYarn) read_yarn(rope, s);
  if (s.kind == Kind::kDynamic && s.original_tokens != c.max_tokens)
    rope.refuse("original_max_position_embeddings", fmt::format("'max_position_embeddings' = {}", c.max_tokens));
  if (s.kind == Kind::kDynamic && c.head_dim < 4) rope.fail("dynamic RoPE scaling needs a 'head_dim' of at least 4");
  return s;
}

// With the length before scaling.
std::string text_of(const JsonConfig& rope, const RopeScaling& s) {
  if (s.kind == Kind::kNone) return "none";
  JsonConfig::Json text = rope.json();
  if (s.kind != Kind::kLinear) text["original_max_position_embeddings"] = static_cast<std::int64_t>(s.original_tokens);
  return text.dump();
}

// transformers 5 prefers this key, transformers 4 ignores it.
void refuse_other_length(const JsonConfig& file, const RopeScaling& s) {
  const char* key = "original_max_position_embeddings";
  if (s.kind != Kind::kLlama3 && s.kind != Kind::kYarn) return;
  if (file.has(key) && file.at(key) != s.original_tokens) file.refuse(key, fmt::format("{}, as with the RoPE scaling", s.original_tokens));
}

// rope_theta and rope_scaling, or rope_parameters (transformers 5). Throws InputError.
void read_rope(const JsonConfig& file, ModelConfig& c) {
  const bool newer = file.has("rope_parameters");
  if (newer && file.has("rope_scaling")) file.fail("'rope_scaling' and 'rope_parameters' are both set; keep the one that holds");
  c.rope_base = file.has("rope_theta") ? rope_base(file) : 10'000;
  const char* key = newer ? "rope_parameters" : "rope_scaling";
  if (!file.has(key)) return;
  const JsonConfig rope = file.object(key);
  if (rope.json().empty()) return;
  for (const auto& [name, value] : rope.json().items())
    if (value.is_object()) rope.refuse(name, "the same RoPE for all layers");
  if (rope.has("rope_theta")) {
    // transformers 5 reads it, transformers 4 uses its default.
    if (!newer && !file.has("rope_theta")) rope.refuse("rope_theta", "'rope_theta' outside of it");
    if (file.has("rope_theta") && rope_base(rope) != c.rope_base)
      rope.refuse("rope_theta", fmt::format("'rope_theta' = {}, as outside of it", number_text(c.rope_base)));
    c.rope_base = rope_base(rope);
  }
  const std::string kind = kind_name(rope, newer);
  c.rope_scaling = read_scaling(rope, c, kind);
  c.rope_text = text_of(rope, c.rope_scaling);
  refuse_other_length(file, c.rope_scaling);
  const auto original = static_cast<std::int64_t>(c.rope_scaling.original_tokens);
  c.max_tokens = static_cast<std::int32_t>(longest_text(kind, c.rope_scaling.factor, original, c.max_tokens));
}

constexpr std::int32_t kMaxDim = 1 << 20, kMaxTokens = 1 << 28;

const std::map<std::string, std::string>& architectures() {
  static const std::map<std::string, std::string> by_type{
      {"llama", "LlamaForCausalLM"}, {"mistral", "MistralForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}};
  return by_type;
}

std::string read_type(const JsonConfig& file) {
  std::vector<std::string> allowed;
  for (const auto& [type, architecture] : architectures()) allowed.push_back('"' + type + '"');
  const JsonConfig::Json& type = file.at("model_type");
  if (!type.is_string() || !architectures().contains(type.get<std::string>())) file.refuse("model_type", join(allowed, ", "));
  const std::string& architecture = architectures().at(type.get<std::string>());
  if (file.has("architectures")) file.only("architectures", JsonConfig::Json::array({architecture}));
  return type.get<std::string>();
}

void refuse_unsupported(const JsonConfig& file, const std::string& type) {
  file.only("hidden_act", "silu");
  file.only("partial_rotary_factor", 1);
  file.only("quantization_config", nullptr);
  file.only("use_mrope", false);
  file.only("is_causal", true);
  if (type != "llama") file.only("mlp_bias", false);
  if (type == "mistral" || type == "qwen2") file.only("attention_bias", false);
  if (type == "llama") file.only("sliding_window", nullptr);
  if (type == "llama" || type == "mistral") file.only("layer_types", nullptr);
  if (type == "llama" || type == "mistral") file.only("use_sliding_window", false);
}

// The first of several; -1 if absent, null, [] or -1.
std::int32_t token_id(const JsonConfig& file, const char* key, std::int32_t vocab_size) {
  if (!file.has(key) || file.at(key) == JsonConfig::Json::array()) return -1;
  const JsonConfig::Json& value = file.at(key).is_array() ? file.at(key)[0] : file.at(key);
  if (value.is_number_integer() && value == -1) return -1;
  if (!value.is_number_integer() || value < 0 || value >= vocab_size)
    file.refuse(key, fmt::format("an id below vocab_size {}, a list of them, or null", vocab_size));
  return value.get<std::int32_t>();
}

std::vector<std::string> layer_types(const JsonConfig& file, std::int32_t layers) {
  if (!file.has("layer_types")) return {};
  const JsonConfig::Json& types = file.at("layer_types");
  if (!types.is_array() || types.size() != static_cast<std::size_t>(layers))
    file.refuse("layer_types", fmt::format("a list of one type for each of {} layers", layers));
  std::vector<std::string> all;
  for (const JsonConfig::Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") file.refuse("layer_types", "\"full_attention\", \"sliding_attention\"");
    all.push_back(type.get<std::string>());
  }
  return all;
}

WindowKeys read_window_keys(const JsonConfig& file, const ModelConfig& c) {
  WindowKeys keys{c.type, c.layers};
  const bool is_qwen = c.type != "mistral";
  keys.use_sliding_window = file.flag_or("use_sliding_window", false);
  if (is_qwen) keys.layer_types = layer_types(file, c.layers);
  if (is_qwen && !*keys.use_sliding_window) return keys;  // other keys have no effect
  if (file.given("sliding_window") != nullptr) keys.sliding_window = file.integer_or("sliding_window", 0, kMaxTokens);
  const JsonConfig::Json* first = file.given("max_window_layers");  // may be 0, unlike other counts
  if (!is_qwen || !keys.layer_types.empty() || first == nullptr) return keys;
  if (!first->is_number_integer() || *first < 0 || *first > kMaxDim)
    file.refuse("max_window_layers", fmt::format("an integer in [0, {}]", kMaxDim));
  keys.max_window_layers = first->get<std::int64_t>();
  return keys;
}

void read_windows(const JsonConfig& file, ModelConfig& c) {
  if (c.type == "llama") return;
  const WindowKeys keys = read_window_keys(file, c);
  for (const std::int64_t window : attention_windows(keys)) c.windows.push_back(static_cast<std::int32_t>(window));
  if (c.windows.empty() && std::find(keys.layer_types.begin(), keys.layer_types.end(), "sliding_attention") != keys.layer_types.end())
    file.fail("'layer_types' has \"sliding_attention\", but no window is set; it takes 'use_sliding_window' and 'sliding_window'");
}

std::int32_t kv_heads(const JsonConfig& file, const ModelConfig& c) {
  constexpr const char* kKey = "num_key_value_heads";
  if (file.given(kKey) != nullptr) return file.integer_or(kKey, c.q_heads, 10'000);
  const auto heads = static_cast<std::int32_t>(default_kv_heads(c.type, c.q_heads));
  if (c.q_heads % heads != 0)
    file.fail(fmt::format("has no '{}'; the {} that {} has then do not divide 'num_attention_heads' = {}", kKey, heads, c.type, c.q_heads));
  return heads;
}

void read_dims(const JsonConfig& file, ModelConfig& c) {
  c.layers = file.integer("num_hidden_layers", 10'000);
  c.hidden_dim = file.integer("hidden_size", kMaxDim);
  c.intermediate_dim = file.integer("intermediate_size", kMaxDim);
  c.q_heads = file.integer("num_attention_heads", 10'000);
  c.kv_heads = kv_heads(file, c);
  if (c.q_heads % c.kv_heads != 0)
    file.fail(fmt::format("'num_key_value_heads' = {} does not divide 'num_attention_heads' = {}", c.kv_heads, c.q_heads));
  const std::int32_t head_dim = c.type == "qwen3" ? 128 : std::max(1, c.hidden_dim / c.q_heads);
  c.head_dim = file.integer_or("head_dim", head_dim, 4096);
  if (c.head_dim % 2 != 0) file.fail(fmt::format("'head_dim' = {} is odd; RoPE turns pairs of channels", c.head_dim));
  c.vocab_size = file.integer("vocab_size", 1 << 24);
  c.max_tokens = file.integer("max_position_embeddings", kMaxTokens);
}

}  // namespace

void check_token(const ModelConfig& model, std::int32_t position, std::int32_t id) {
  if (id < 0 || id >= model.vocab_size)
    throw InputError(fmt::format("token {} has id {}, outside [0, {}) of model '{}'", position, id, model.vocab_size, model.name));
}

ModelConfig read_model_config(const std::string& dir) {
  if (std::error_code error; !std::filesystem::is_directory(dir, error))
    if (const std::string advice = hub_advice(dir, true); !advice.empty()) throw InputError("no folder '" + dir + "'" + advice);
  const JsonConfig file((std::filesystem::path(dir) / "config.json").string());
  ModelConfig c;
  c.name = model_title(dir);
  c.type = read_type(file);
  refuse_unsupported(file, c.type);
  read_dims(file, c);
  read_rope(file, c);
  read_windows(file, c);
  c.norm_epsilon = static_cast<float>(file.positive("rms_norm_eps"));
  c.bos_id = token_id(file, "bos_token_id", c.vocab_size);
  c.tied_head = file.flag_or("tie_word_embeddings", false);
  const bool biased = c.type != "mistral" && c.type != "qwen2" && file.flag_or("attention_bias", false);
  c.qkv_bias = biased || c.type == "qwen2";
  c.o_bias = biased;
  c.mlp_bias = c.type == "llama" && file.flag_or("mlp_bias", false);
  c.qk_norm = c.type == "qwen3";
  return c;
}

}  // namespace kvlab
