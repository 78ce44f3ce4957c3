#include "engine/model/config.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kvlab {

namespace {

using nlohmann::json;

// One config.json; every message begins with its path.
class ModelConfigFile {
 public:
  explicit ModelConfigFile(std::string path) : path_(std::move(path)) {
    std::ifstream stream(path_);
    if (!stream) fail("cannot be read");
    root_ = json::parse(stream, nullptr, false);
    if (!root_.is_object()) fail("not a JSON object");
  }

  std::int32_t integer(const char* key, std::int32_t max) const {
    const json& value = at(key);
    if (!value.is_number_integer() || value < 1 || value > max) fail(key, value, fmt::format("an integer in [1, {}]", max));
    return value.get<std::int32_t>();
  }
  std::int32_t integer_or(const char* key, std::int32_t otherwise, std::int32_t max) const {
    return absent(key) ? otherwise : integer(key, max);
  }
  // A token id, or -1 where the model has none. Some models list several; the first is meant.
  std::int32_t token_id(const char* key, std::int32_t vocab_size) const {
    if (absent(key)) return -1;
    const json& value = root_[key].is_array() && !root_[key].empty() ? root_[key][0] : root_[key];
    if (!value.is_number_integer() || value < 0 || value >= vocab_size)
      fail(key, value, fmt::format("an id below vocab_size {}", vocab_size));
    return value.get<std::int32_t>();
  }
  double positive(const char* key) const {
    const json& value = at(key);
    if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>())) fail(key, value, "a positive number");
    return value.get<double>();
  }
  bool flag(const char* key) const {
    if (absent(key)) return false;
    if (!root_[key].is_boolean()) fail(key, root_[key], "true or false");
    return root_[key].get<bool>();
  }
  // Where only one value is supported, an absent key means it.
  void only(const char* key, const json& allowed) const {
    if (!absent(key) && root_[key] != allowed) fail(key, root_[key], allowed.dump());
  }
  void must_divide(const char* key, std::int32_t part, const char* whole_key, std::int32_t whole) const {
    if (whole % part != 0) fail(fmt::format("'{}' = {} does not divide '{}' = {}", key, part, whole_key, whole));
  }
  [[noreturn]] void fail(const char* key, const json& found, const std::string& allowed) const {
    fail(fmt::format("'{}' = {} is not supported; allowed: {}", key, found.dump(-1, ' ', true, json::error_handler_t::replace), allowed));
  }
  [[noreturn]] void fail(const std::string& message) const { throw InputError(path_ + ": " + message); }

  const json& at(const char* key) const {
    if (absent(key)) fail(fmt::format("missing key '{}'", key));
    return root_[key];
  }

 private:
  bool absent(const char* key) const { return !root_.contains(key) || root_[key].is_null(); }

  std::string path_;
  json root_;
};

constexpr std::int32_t kMaxDim = 1 << 20;

void refuse_unsupported(const ModelConfigFile& file) {
  if (file.at("model_type") != "llama") file.fail("model_type", file.at("model_type"), "\"llama\"");
  file.only("hidden_act", "silu");
  file.only("attention_bias", false);
  file.only("mlp_bias", false);
  file.only("rope_scaling", nullptr);
}

std::string folder_name(const std::string& dir) {
  const std::filesystem::path path = std::filesystem::absolute(dir).lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

}  // namespace

ModelConfig read_model_config(const std::string& dir) {
  const ModelConfigFile file((std::filesystem::path(dir) / "config.json").string());
  refuse_unsupported(file);
  ModelConfig c;
  c.name = folder_name(dir);
  c.layers = file.integer("num_hidden_layers", 10'000);
  c.hidden_dim = file.integer("hidden_size", kMaxDim);
  c.intermediate_dim = file.integer("intermediate_size", kMaxDim);
  c.q_heads = file.integer("num_attention_heads", 10'000);
  c.kv_heads = file.integer_or("num_key_value_heads", c.q_heads, 10'000);
  file.must_divide("num_key_value_heads", c.kv_heads, "num_attention_heads", c.q_heads);
  c.head_dim = file.integer_or("head_dim", std::max(1, c.hidden_dim / c.q_heads), 4096);
  if (c.head_dim % 2 != 0) file.fail(fmt::format("'head_dim' = {} is odd; RoPE turns pairs of channels", c.head_dim));
  c.vocab_size = file.integer("vocab_size", 1 << 24);
  c.max_tokens = file.integer("max_position_embeddings", 1 << 28);
  c.rope_base = file.positive("rope_theta");
  c.norm_epsilon = static_cast<float>(file.positive("rms_norm_eps"));
  c.bos_id = file.token_id("bos_token_id", c.vocab_size);
  c.tied_head = file.flag("tie_word_embeddings");
  return c;
}

}  // namespace kvlab
