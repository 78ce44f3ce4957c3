#include "engine/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/hugging_face.h"
#include "base/text.h"
#include "engine/model/config_rope.h"
#include "engine/model/json_config.h"
#include "serving/attention_windows.h"
#include "serving/default_kv_heads.h"

namespace kvlab {

namespace {

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

// The first if several; -1 if absent, null, [] or -1.
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
  if (is_qwen && !*keys.use_sliding_window) return keys;  // other keys have no effect then
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
