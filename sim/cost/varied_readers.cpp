#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "sim/cost/model_families.h"

namespace kvlab {

namespace {

void set_two_kinds(ModelSpec& m, const std::vector<bool>& in_window, std::int64_t window, const HeadShape& full,
                   const HeadShape& windowed) {
  m.sliding_window = 0;
  m.attention_kinds.clear();
  m.layer_shapes.clear();
  for (const bool has_window : in_window) {
    m.attention_kinds.push_back(has_window ? AttentionKind::kWindow : AttentionKind::kFull);
    m.layer_shapes.push_back({has_window ? windowed : full, m.intermediate});
  }
  m.some_window = window;
  if (std::find(in_window.begin(), in_window.end(), true) == in_window.end()) m.some_window = 0;
}

// By layer_types or zeros and ones; further entries are of multi-token prediction.
std::vector<bool> windowed_layers(Params& p, const char* pattern, std::int64_t layers) {
  std::vector<bool> windowed;
  const char* const key = p.has("layer_types") ? "layer_types" : pattern;
  for (const std::string& word : p.words(key, "of each layer its attention"))
    windowed.push_back(word == "sliding_attention" || word == "1");
  if (!windowed.empty() && static_cast<std::int64_t>(windowed.size()) < layers)
    p.fail_at(key, fmt::format("'{}': expected one entry for each of {} layers", key, layers));
  windowed.resize(windowed.empty() ? 0 : static_cast<std::size_t>(layers));
  return windowed;
}

void read_gemma_experts(Params& p, ModelSpec& m) {
  m.experts = p.required<std::int64_t>("num_experts", 1, kMaxWidth, "routed experts per layer");
  m.experts_per_token = p.required<std::int64_t>("top_k_experts", 1, m.experts, "experts of a token");
  m.moe_intermediate = p.required<std::int64_t>("moe_intermediate_size", 1, kMaxWidth, "width of one expert");
  m.shared_intermediate = m.intermediate;  // the dense MLP runs with the experts
  m.norms += 3;
  m.layer_extras += m.hidden;  // router input scales
  m.router_bias = true;
}

// Gemma 3n, Gemma 4 E2B and E4B.
void read_inputs_per_layer(Params& p, ModelSpec& m) {
  const auto width = p.optional<std::int64_t>("hidden_size_per_layer_input", 256, 0, kMaxWidth, "width of each layer's own input");
  const auto rows = p.optional<std::int64_t>("vocab_size_per_layer_input", 262144, 1, 1 << 24, "tokens in their table");
  if (width == 0) return;
  m.norms += 1;
  m.layer_extras += 2 * m.hidden * width;
  m.embedding_extras = m.layers * width * (rows + m.hidden) + width;
}

// Gemma 4: global layers have wider heads with keys as values; the last layers use earlier K and V.
void read_gemma4(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  std::vector<bool> windowed = windowed_layers(p, "layer_types", m.layers);
  for (std::int64_t i = 0; windowed.size() < static_cast<std::size_t>(m.layers); ++i)
    windowed.push_back((i + 1) % 6 != 0 && i + 1 < m.layers);
  const auto window = p.optional<std::int64_t>("sliding_window", 512, 1, kMaxWidth, "tokens a query sees");
  const bool is_one_product = p.flag("attention_k_eq_v", false, "values of global layers are their keys");
  const auto dim = p.optional<std::int64_t>("global_head_dim", 512, 1, kMaxWidth, "channels of a head of global layers");
  const auto given = p.optional<std::int64_t>("num_global_key_value_heads", m.kv_heads, 1, m.q_heads, "KV heads of global layers");
  const std::int64_t kv = is_one_product ? given : m.kv_heads;
  set_two_kinds(m, windowed, window, {m.q_heads, kv, dim, dim, is_one_product}, {m.q_heads, m.kv_heads, m.head_dim, m.head_dim});
  const auto shared = p.optional<std::int64_t>("num_kv_shared_layers", 0, 0, m.layers, "last layers without K and V of their own");
  const bool is_double = p.flag("use_double_wide_mlp", false, "their MLP is twice as wide");
  for (std::size_t i = m.layer_shapes.size() - static_cast<std::size_t>(shared); i < m.layer_shapes.size(); ++i) {
    m.layer_shapes[i].heads.has_own_kv = false;
    m.layer_shapes[i].mlp *= is_double ? 2 : 1;
  }
  if (p.flag("enable_moe_block", false, "each layer has experts too")) read_gemma_experts(p, m);
  read_inputs_per_layer(p, m);
}

// MiMo-V2-Flash: values are narrower than keys, window layers have more KV heads.
void read_mimo_v2(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  std::vector<bool> windowed = windowed_layers(p, "hybrid_layer_pattern", m.layers);
  for (std::int64_t i = 0; windowed.size() < static_cast<std::size_t>(m.layers); ++i) windowed.push_back(i != 0 && (i + 1) % 6 != 0);
  const auto window = p.optional<std::int64_t>("sliding_window", 128, 1, kMaxWidth, "tokens a query sees");
  const auto value = p.optional<std::int64_t>("v_head_dim", 128, 1, kMaxWidth, "channels of a value");
  HeadShape full{m.q_heads, m.kv_heads, m.head_dim, value}, narrow;
  narrow.q = p.optional<std::int64_t>("swa_num_attention_heads", m.q_heads, 1, kMaxWidth, "query heads of layers with a window");
  narrow.kv = p.optional<std::int64_t>("swa_num_key_value_heads", 2 * m.kv_heads, 1, kMaxWidth, "their KV heads");
  narrow.key_dim = p.optional<std::int64_t>("swa_head_dim", m.head_dim, 1, kMaxWidth, "channels of their keys");
  narrow.value_dim = p.optional<std::int64_t>("swa_v_head_dim", value, 1, kMaxWidth, "channels of their values");
  set_two_kinds(m, windowed, window, full, narrow);
  m.has_sinks = p.flag("add_swa_attention_sink_bias", true, "layers with a window have sinks");
}

// Step-3.5-Flash: a gate per head, more query heads in window layers.
void read_step3p5(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  const std::vector<bool> windowed = windowed_layers(p, "layer_types", m.layers);
  if (windowed.empty()) p.fail_at("model_type", "'layer_types' is missing: the attention of each layer");
  const auto window = p.optional<std::int64_t>("sliding_window", 512, 1, kMaxWidth, "tokens a query sees");
  const auto experts = p.optional<std::int64_t>("moe_num_experts", m.experts, 1, kMaxWidth, "routed experts per layer");
  m.experts = experts;
  m.experts_per_token = p.optional<std::int64_t>("moe_top_k", m.experts_per_token, 1, experts, "experts of a token");
  m.shared_intermediate = p.optional<std::int64_t>("share_expert_dim", 1280, 0, kMaxWidth, "width of the expert every token uses");
  std::int64_t q = p.optional<std::int64_t>("num_sliding_attention_heads", m.q_heads, 1, kMaxWidth, "query heads of layers with a window");
  std::int64_t kv = p.optional<std::int64_t>("num_attention_groups", m.kv_heads, 1, kMaxWidth, "KV heads");
  const HeadShape full{m.q_heads, kv, m.head_dim, m.head_dim};
  if (p.has("attention_other_setting")) {
    Params other = p.child("attention_other_setting", "attention_other_setting");
    q = other.optional<std::int64_t>("num_attention_heads", q, 1, kMaxWidth, "query heads of layers with a window");
    kv = other.optional<std::int64_t>("num_attention_groups", kv, 1, kMaxWidth, "their KV heads");
    other.allow({"attention_type", "head_dim", "true_head_dim"});
    other.reject_unread();
  }
  m.kv_heads = full.kv;
  set_two_kinds(m, windowed, window, full, {q, kv, m.head_dim, m.head_dim});
  m.head_gate = p.flag("use_head_wise_attn_gate", true, "a gate of one number per head");
  if (!p.has("moe_layers_enum")) return;
  m.expert_layers.assign(static_cast<std::size_t>(m.layers), false);
  std::string text = p.text("moe_layers_enum", "layers with experts");
  for (std::size_t at = 0; at < text.size(); at = text.find(',', at) == std::string::npos ? text.size() : text.find(',', at) + 1) {
    const std::size_t layer = std::stoul(text.substr(at));
    if (layer < m.expert_layers.size()) m.expert_layers[layer] = true;
  }
}

std::string scalar_of(const YAML::Node& map, const char* key) {
  const YAML::Node node = map[key];
  return node.IsDefined() && node.IsScalar() ? node.Scalar() : "";
}

bool is_on(const YAML::Node& map, const char* key) {
  const std::string value = scalar_of(map, key);
  return value == "true" || value == "True";
}

// DeciLM: two thirds of 2 * multiple * hidden, up to a multiple of 256.
std::int64_t deci_width(double multiple, std::int64_t hidden) {
  constexpr std::int64_t kMultiple = 256;
  return ceil_div(static_cast<std::int64_t>(2 * multiple * static_cast<double>(hidden) / 3), kMultiple) * kMultiple;
}

// Llama-Nemotron (arXiv:2411.19146): layers without attention or MLP, widths and KV heads by layer.
void read_blocks(Params& p, const ModelFile& file, ModelSpec& m) {
  const YAML::Node blocks = file.config->root["block_configs"];
  if (!blocks.IsDefined() || !blocks.IsSequence() || blocks.size() != static_cast<std::size_t>(m.layers))
    p.fail_at("num_hidden_layers", fmt::format("'block_configs' must list {} layers", m.layers));
  std::int64_t most = 1;
  for (const YAML::Node& block : blocks) {
    const YAML::Node attention = block["attention"], ffn = block["ffn"];
    for (const YAML::Node& part : {attention, ffn})
      for (const char* key : {"replace_with_linear", "sparsify", "unshifted_sink"})
        if (is_on(part, key)) p.fail_at("block_configs", fmt::format("'{}' in block_configs is not priced", key));
    LayerShape shape;
    if (!is_on(attention, "no_op")) {
      const std::string group = scalar_of(attention, "n_heads_in_group"), window = scalar_of(attention, "window_length");
      if (group.empty() || std::stoll(group) < 1) p.fail_at("block_configs", "'n_heads_in_group' is missing in block_configs");
      if (!window.empty()) p.fail_at("block_configs", "'window_length' in block_configs is not priced");
      shape.heads = {m.q_heads, m.q_heads / std::stoll(group), m.head_dim, m.head_dim};
      most = std::max(most, shape.heads.kv);
    }
    if (!is_on(ffn, "no_op")) {
      const std::string multiple = scalar_of(ffn, "ffn_mult"), width = scalar_of(ffn, "intermediate_size");
      if (multiple.empty() && width.empty()) p.fail_at("block_configs", "'ffn_mult' is missing in block_configs");
      shape.mlp = width.empty() ? deci_width(std::stod(multiple), m.hidden) : std::stoll(width);
    }
    m.attention_kinds.push_back(shape.heads.q > 0 ? AttentionKind::kFull : AttentionKind::kNone);
    m.layer_shapes.push_back(shape);
  }
  m.kv_heads = most;
}

// ERNIE 4.5 names experts differently.
void read_ernie(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  m.experts = p.optional<std::int64_t>("moe_num_experts", 64, 1, kMaxWidth, "routed experts per layer");
  m.experts_per_token = p.optional<std::int64_t>("moe_k", 6, 1, m.experts, "experts of a token");
  m.moe_intermediate = p.optional<std::int64_t>("moe_intermediate_size", 1536, 1, kMaxWidth, "width of one expert");
  m.shared_intermediate = m.moe_intermediate * p.optional<std::int64_t>("moe_num_shared_experts", 2, 0, 1024, "experts every token uses");
  m.router_bias = true;
  const auto first = p.optional<std::int64_t>("moe_layer_start_index", 1, 0, m.layers, "the first layer with experts"),
             last = p.optional<std::int64_t>("moe_layer_end_index", -1, -1, 10'000, "the last layer with experts; -1: the model's last"),
             every = p.optional<std::int64_t>("moe_layer_interval", 1, 1, kMaxWidth, "every so many layers one has experts");
  for (std::int64_t i = 0; i < m.layers; ++i) m.expert_layers.push_back((i + 1) % every == 0 && i >= first && (last < 0 || i <= last));
}

}  // namespace

std::vector<NamedReader> varied_readers() {
  return {
      {"gemma4", read_gemma4}, {"mimo_v2", read_mimo_v2}, {"step3p5", read_step3p5}, {"block_configs", read_blocks}, {"ernie", read_ernie}};
}

}  // namespace kvlab
