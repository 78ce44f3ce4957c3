#include "engine/model/config_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"
#include "serving/longest_text.h"

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
         "beta_slow", "truncate", "finetuned"}}}};  // "finetuned" does not affect the computation
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

// transformers 5 prefers this key; transformers 4 ignores it.
void refuse_other_length(const JsonConfig& file, const RopeScaling& s) {
  const char* key = "original_max_position_embeddings";
  if (s.kind != Kind::kLlama3 && s.kind != Kind::kYarn) return;
  if (file.has(key) && file.at(key) != s.original_tokens) file.refuse(key, fmt::format("{}, as with the RoPE scaling", s.original_tokens));
}

}  // namespace

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
    // transformers 5 reads it here, transformers 4 uses its default.
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

}  // namespace kvlab
