#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "serving/attention_windows.h"
#include "sim/cost/model_families.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMaxHeadDim = 1 << 14;

bool has_linear(const Family& family) {
  return family.attention == FamilyAttention::kGatedDelta || family.attention == FamilyAttention::kLightning;
}

void read_heads(Params& p, const Family& family, const ModelFile& file, ModelSpec& m) {
  m.q_heads = read_size(p, "num_attention_heads", family.sizes.q_heads, kMaxWidth, "query heads");
  const std::int64_t of_family = family.sizes.kv_heads > 0 ? family.sizes.kv_heads : default_kv_heads(m.family, m.q_heads);
  const std::int64_t untold = file.has_null_kv_heads ? m.q_heads : of_family;
  if (!p.has("num_key_value_heads") && m.q_heads % untold != 0)
    p.fail_at("num_attention_heads", "num_key_value_heads is missing, and num_attention_heads is not a multiple of the " +
                                         std::to_string(untold) + " that " + m.family + " has then");
  m.kv_heads = p.optional<std::int64_t>("num_key_value_heads", untold, 1, m.q_heads, "KV heads");
  if (m.q_heads % m.kv_heads != 0) p.fail_at("num_key_value_heads", "num_attention_heads is not a multiple of num_key_value_heads");
  if (family.attention == FamilyAttention::kLatent) return;  // channels are in other config keys
  const std::int64_t head_dim = family.sizes.head_dim;
  if (head_dim == 0 && !p.has("head_dim") && m.hidden % m.q_heads != 0)
    p.fail_at("hidden_size", "hidden_size is not a multiple of num_attention_heads; give head_dim");
  m.head_dim = p.optional<std::int64_t>("head_dim", head_dim > 0 ? head_dim : m.hidden / m.q_heads, 1, kMaxHeadDim, "channels of one head");
}

// For the cache: one KV head of kv_lora_rank + qk_rope_head_dim channels, whose first kv_lora_rank are the value.
void read_latent(Params& p, const ModelFile& file, ModelSpec& m) {
  LatentAttention& l = m.latent;
  l.q_rank = file.has_null_q_rank ? 0 : p.optional<std::int64_t>("q_lora_rank", 1536, 0, kMaxWidth, "rank of queries; 0 or null: none");
  l.kv_rank = p.optional<std::int64_t>("kv_lora_rank", 512, 1, kMaxWidth, "rank of keys and values");
  l.nope = p.optional<std::int64_t>("qk_nope_head_dim", 128, 1, kMaxHeadDim, "channels of queries and keys without RoPE");
  l.rope = p.optional<std::int64_t>("qk_rope_head_dim", 64, 0, kMaxHeadDim, "channels of queries and keys with RoPE");
  l.value = p.optional<std::int64_t>("v_head_dim", 128, 1, kMaxHeadDim, "channels of values");
  m.kv_heads = 1;
  m.head_dim = l.cached();
}

void read_gated_delta(Params& p, ModelSpec& m) {
  LinearAttention& l = m.linear;
  l.rule = LinearAttention::Rule::kDelta;
  l.key_heads = p.optional<std::int64_t>("linear_num_key_heads", 16, 1, kMaxWidth, "key heads of linear attention");
  l.value_heads = p.optional<std::int64_t>("linear_num_value_heads", 32, 1, kMaxWidth, "value heads of linear attention");
  l.key_dim = p.optional<std::int64_t>("linear_key_head_dim", 128, 1, kMaxHeadDim, "channels of a key head");
  l.value_dim = p.optional<std::int64_t>("linear_value_head_dim", 128, 1, kMaxHeadDim, "channels of a value head");
  const std::size_t dtype = p.choice("mamba_ssm_dtype", {"auto", "bfloat16", "float32"}, 0, "type of the state; auto: that of activations");
  l.state_value_bytes = dtype == 2 ? 4 : dtype == 1 ? 2 : 0;
  l.conv_tokens = p.optional<std::int64_t>("linear_conv_kernel_dim", 4, 1, 1 << 10, "length of the convolution");
  if (l.value_heads % l.key_heads != 0)
    p.fail_at("linear_num_value_heads", "linear_num_value_heads is not a multiple of linear_num_key_heads");
}

// Listed kinds, else the family's.
std::vector<AttentionKind> kinds_of_layers(Params& p, const Family& family, const ModelSpec& m) {
  std::vector<AttentionKind> kinds;
  const auto add = [&](bool is_linear) { kinds.push_back(is_linear ? AttentionKind::kLinear : AttentionKind::kFull); };
  for (const std::string& type : p.words("layer_types", "of each layer its attention")) add(type == "linear_attention");
  if (kinds.empty())
    for (const std::string& type : p.words("attn_type_list", "of each layer its attention; 0: linear, 1: full")) add(type == "0");
  if (!kinds.empty()) return kinds;
  const bool is_delta = family.attention == FamilyAttention::kGatedDelta;
  const auto every =
      p.optional<std::int64_t>("full_attention_interval", is_delta ? 4 : 2, 1, kMaxWidth, "every so many layers one is full");
  for (std::int64_t layer = 0; layer < m.layers; ++layer) add(is_delta ? (layer + 1) % every != 0 : (layer + 1) % every == 0);
  return kinds;
}

void read_linear(Params& p, const Family& family, ModelSpec& m) {
  std::vector<AttentionKind> kinds = kinds_of_layers(p, family, m);
  if (kinds.size() != static_cast<std::size_t>(m.layers))
    p.fail_at(p.has("layer_types") ? "layer_types" : "attn_type_list",
              fmt::format("expected one type of attention for each of {} layers", m.layers));
  if (std::find(kinds.begin(), kinds.end(), AttentionKind::kLinear) == kinds.end()) return;
  if (family.attention == FamilyAttention::kGatedDelta)
    read_gated_delta(p, m);
  else
    m.linear = {LinearAttention::Rule::kDecay, m.q_heads, m.q_heads, m.head_dim, m.head_dim, 0};
  m.attention_kinds = std::move(kinds);
}

WindowKeys window_keys(Params& p, const ModelFile& file, const ModelSpec& m) {
  WindowKeys keys{m.family, m.layers};
  if (file.has_null_window) keys.sliding_window = 0;
  if (p.has("sliding_window")) keys.sliding_window = p.required<std::int64_t>("sliding_window", 0, kMaxWidth, "tokens a query sees");
  if (p.has("use_sliding_window")) keys.use_sliding_window = p.flag("use_sliding_window", false, "whether sliding_window applies");
  if (p.has("max_window_layers"))
    keys.max_window_layers = p.required<std::int64_t>("max_window_layers", 0, kMaxWidth, "the first layer with a window");
  if (p.has("sliding_window_pattern") && !p.has("layer_types"))
    keys.sliding_window_pattern = p.required<std::int64_t>("sliding_window_pattern", 0, kMaxWidth, "every so many layers one sees all");
  keys.layer_types = p.words("layer_types", "of each layer its attention");
  if (!keys.layer_types.empty() && keys.layer_types.size() != static_cast<std::size_t>(m.layers))
    p.fail_at("layer_types", "'layer_types': expected one type for each of " + std::to_string(m.layers) + " layers");
  return keys;
}

void read_windows(Params& p, const ModelFile& file, ModelSpec& m) {
  const std::vector<std::int64_t> windows = attention_windows(window_keys(p, file, m));
  if (windows.empty()) return;
  const std::int64_t window = *std::max_element(windows.begin(), windows.end());
  if (std::all_of(windows.begin(), windows.end(), [&](std::int64_t w) { return w == window; })) {
    m.sliding_window = window;
    return;
  }
  m.some_window = window;
  for (const std::int64_t w : windows) m.attention_kinds.push_back(w > 0 ? AttentionKind::kWindow : AttentionKind::kFull);
}

// The first of several synonymous keys, or `fallback`.
std::int64_t any_of(Params& p, std::initializer_list<const char*> keys, std::int64_t fallback, const char* meaning) {
  for (const char* key : keys)
    if (p.has(key)) return p.required<std::int64_t>(key, 0, kMaxWidth, meaning);
  return fallback;
}

// A list of layer numbers as flags.
std::vector<bool> flags_of(Params& p, const char* key, std::int64_t layers, const char* meaning) {
  std::vector<bool> flags(static_cast<std::size_t>(layers), false);
  for (const double number : p.numbers(key, 0, static_cast<double>(layers - 1), meaning)) {
    if (number != std::floor(number)) p.fail_at(key, std::string("'") + key + "': expected numbers of layers");
    flags[static_cast<std::size_t>(number)] = true;
  }
  return flags;
}

// Every decoder_sparse_step-th layer, except mlp_only_layers.
std::vector<bool> sparse_step_layers(Params& p, std::int64_t layers) {
  const auto step = p.optional<std::int64_t>("decoder_sparse_step", 1, 1, kMaxWidth, "every so many layers one has experts");
  std::vector<bool> routed = flags_of(p, "mlp_only_layers", layers, "layers without experts");
  for (std::size_t l = 0; l < routed.size(); ++l) routed[l] = !routed[l] && static_cast<std::int64_t>(l + 1) % step == 0;
  return routed;
}

// A word per layer, one of which means dense. Entries for multi-token prediction may follow.
std::vector<bool> named_layers(Params& p, const char* key, const std::string& dense, std::int64_t layers) {
  std::vector<bool> routed;
  for (const std::string& word : p.words(key, "which layers have experts")) routed.push_back(word != dense);
  if (static_cast<std::int64_t>(routed.size()) < layers)
    p.fail_at(key, std::string("'") + key + "': expected one entry for each of " + std::to_string(layers) + " layers");
  routed.resize(static_cast<std::size_t>(layers));
  return routed;
}

std::vector<bool> layers_after_dense(Params& p, const Family& family, std::int64_t layers) {
  if (p.has("mlp_layer_types")) return named_layers(p, "mlp_layer_types", "dense", layers);
  if (p.inline_text("moe_layer_freq", "").starts_with("[")) return named_layers(p, "moe_layer_freq", "0", layers);
  const auto first = p.optional<std::int64_t>("first_k_dense_replace", family.experts.first_dense, 0, kMaxWidth, "dense layers before");
  const auto every = p.optional<std::int64_t>("moe_layer_freq", 1, 1, kMaxWidth, "every so many layers one has experts");
  std::vector<bool> routed;
  for (std::int64_t l = 0; l < layers; ++l) routed.push_back(l >= first && l % every == 0);
  return routed;
}

std::vector<bool> interleaved_layers(Params& p, std::int64_t layers) {
  const auto step = p.optional<std::int64_t>("interleave_moe_layer_step", 1, 1, kMaxWidth, "every so many layers one has experts");
  if (p.has("moe_layers")) return flags_of(p, "moe_layers", layers, "layers with experts");
  std::vector<bool> routed;
  for (std::int64_t l = 0; l < layers; ++l) routed.push_back((l + 1) % step == 0);
  return routed;
}

std::vector<bool> layers_with_experts(Params& p, const Family& family, std::int64_t layers) {
  const ExpertLayers kind = family.experts.layers;
  if (kind == ExpertLayers::kSparseStep) return sparse_step_layers(p, layers);
  if (kind == ExpertLayers::kFirstDense) return layers_after_dense(p, family, layers);
  if (kind == ExpertLayers::kInterleaved) return interleaved_layers(p, layers);
  return std::vector<bool>(static_cast<std::size_t>(layers), true);
}

std::int64_t shared_width(Params& p, const Family& family, const ModelSpec& m) {
  const FamilyExperts& e = family.experts;
  if (e.layers == ExpertLayers::kInterleaved) return m.moe_intermediate;
  if (e.layers == ExpertLayers::kFirstDense)
    return m.moe_intermediate * any_of(p, {"n_shared_experts", "num_shared_experts"}, e.shared_experts, "experts every token uses");
  return any_of(p, {"shared_expert_intermediate_size", "shared_intermediate_size"}, e.shared_width, "width of the expert every token uses");
}

}  // namespace

void check_layer_types(Params& p, const Family& family) {
  std::set<std::string> known{"full_attention", "sliding_attention", "chunked_attention"};
  if (has_linear(family)) known = {"full_attention", "linear_attention"};
  known.insert(family.layer_types.begin(), family.layer_types.end());
  for (const std::string& type : p.words("layer_types", "of each layer its attention"))
    if (!known.contains(type))
      p.fail_at("layer_types",
                fmt::format("'layer_types' has '{}', which is not priced for {}; priced: {}", type,
                            family.name.empty() ? "a config without model_type" : family.name, join({known.begin(), known.end()}, ", ")));
  for (const std::string& type : p.words("attn_type_list", "of each layer its attention"))
    if (type != "1" && !(type == "0" && family.attention == FamilyAttention::kLightning))
      p.fail_at("attn_type_list", fmt::format("'attn_type_list' has layers of type {}, which is not priced for {}", type, family.name));
}

std::int64_t read_size(Params& p, const char* key, std::int64_t fallback, std::int64_t max, const char* meaning) {
  return fallback > 0 ? p.optional<std::int64_t>(key, fallback, 1, max, meaning) : p.required<std::int64_t>(key, 1, max, meaning);
}

void read_attention(Params& p, const Family& family, const ModelFile& file, ModelSpec& m) {
  read_heads(p, family, file, m);
  if (family.attention == FamilyAttention::kLatent) read_latent(p, file, m);
  if (has_linear(family))
    read_linear(p, family, m);
  else if (family.attention == FamilyAttention::kHeads)
    read_windows(p, file, m);
  m.attention_gate = family.attention_gate;
}

void read_mlps(Params& p, const Family& family, ModelSpec& m) {
  const FamilyExperts& e = family.experts;
  const char* const dense_key = family.name == "opt" ? "ffn_dim" : "intermediate_size";
  const auto dense_width = [&] { return read_size(p, dense_key, family.sizes.intermediate, kMaxWidth, "width of the MLP"); };
  if (e.layers != ExpertLayers::kNone)
    m.experts = any_of(p, {"num_local_experts", "num_experts", "n_routed_experts"}, e.experts, "routed experts per layer");
  std::vector<bool> routed;
  if (m.is_moe()) routed = layers_with_experts(p, family, m.layers);
  const std::int64_t num_routed = std::count(routed.begin(), routed.end(), true);
  if (num_routed == 0) {
    m.experts = 0;
    m.intermediate = dense_width();
    return;
  }
  const char* const per_token = p.has("num_experts_per_token") ? "num_experts_per_token" : "num_experts_per_tok";
  m.experts_per_token = e.per_token > 0 ? p.optional<std::int64_t>(per_token, e.per_token, 1, m.experts, "experts of a token")
                                        : p.required<std::int64_t>(per_token, 1, m.experts, "experts each token is sent to");
  m.moe_intermediate = any_of(p, {"moe_intermediate_size"}, e.width, "width of one expert");
  if (m.moe_intermediate == 0) m.moe_intermediate = dense_width();  // Mixtral
  m.shared_intermediate = shared_width(p, family, m);
  m.shared_gate = m.shared_intermediate > 0 && (e.shared_gate || family.name.empty());
  m.expert_bias = e.has_bias;
  m.router_bias = family.router_bias;
  if (num_routed == m.layers) return;
  constexpr std::int64_t kLlama4Dense = 16384;
  const bool is_interleaved = e.layers == ExpertLayers::kInterleaved;
  m.intermediate =
      is_interleaved ? read_size(p, "intermediate_size_mlp", kLlama4Dense, kMaxWidth, "width of the dense MLP") : dense_width();
  m.expert_layers = std::move(routed);
}

}  // namespace kvlab
