#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "sim/cost/model_families.h"
#include "sim/cost/quantization_schemes.h"

namespace kvlab {

namespace {

using Scheme = QuantizedScheme;
using Plan = QuantizationPlan;
using Rule = QuantizationPlan::Rule;

Dtype type_of(bool is_float, std::int64_t num_bits, Dtype other) {
  if (num_bits == 8) return is_float ? Dtype::kFp8 : Dtype::kInt8;
  return num_bits == 4 && is_float ? Dtype::kFp4 : other;
}

Scheme read_group_scheme(Params& group, const ModelSpec& m) {
  check_quantization_keys(group, {"targets", "weights", "input_activations", "output_activations"});
  if (!group.has("weights")) return {static_cast<double>(bits(m.dtype)), m.dtype};
  Params w = group.child("weights", "weights");
  check_quantization_keys(w, {"num_bits", "type", "group_size"});
  const auto num_bits = w.required<std::int64_t>("num_bits", 2, 16, "bits of a weight");
  const bool is_float = w.choice("type", {"int", "float"}, 0, "kind of number") == 1;
  const std::int64_t size = read_group_size(w, "group_size", -1);
  const bool is_small_float = is_float && num_bits == 4;  // NVFP4, MXFP4: 8-bit scales
  double per_group = is_small_float ? 8 : kScaleBits;
  if (!w.flag("symmetric", true, "no zero point")) per_group += static_cast<double>(num_bits);
  Scheme scheme{static_cast<double>(num_bits) + share_of_group(per_group, size), m.dtype};
  if (!group.has("input_activations")) return scheme;
  Params a = group.child("input_activations", "input_activations");
  check_quantization_keys(a, {"num_bits", "type", "group_size"});
  const bool is_float_too = a.choice("type", {"int", "float"}, 0, "kind of number") == 1;
  scheme.compute = type_of(is_float_too, a.required<std::int64_t>("num_bits", 2, 16, "bits of an activation"), m.dtype);
  return scheme;
}

void read_kv_scheme(Params& q, const char* key, ModelSpec& m) {
  if (!q.has(key)) return;
  const std::string name = q.inline_text(key, "");
  if (name == "FP8" || name == "INT8") {
    m.kv_dtype = name == "FP8" ? Dtype::kFp8 : Dtype::kInt8;
    return;
  }
  Params kv = q.child(key, key);
  check_quantization_keys(kv, {"num_bits", "type", "dtype", "qscheme", "group_size", "ch_axis", "is_dynamic", "scale_type"});
  const bool is_fp8 = kv.has("dtype") ? kv.text("dtype", "type of cached keys and values").starts_with("fp8")
                                      : kv.optional<std::int64_t>("num_bits", 8, 1, 16, "bits of K and V") == 8;
  if (!is_fp8) kv.fail_at(kv.has("dtype") ? "dtype" : "num_bits", fmt::format("'{}' of quantization_config: only 8 bits are priced", key));
  m.kv_dtype = kv.text("type", "float", "kind of number") == "int" ? Dtype::kInt8 : Dtype::kFp8;
}

Plan read_groups(Params& q, const ModelSpec& m) {
  Plan plan;
  std::vector<Rule> defaults;
  Params groups = q.child("config_groups", "config_groups");
  for (const std::string& name : groups.keys()) {
    Params group = groups.child(name, name);
    std::optional<std::vector<std::string>> targets = group.words("targets", "modules of the group");
    const bool is_all = targets->empty() || std::find(targets->begin(), targets->end(), "Linear") != targets->end();
    const Scheme scheme = read_group_scheme(group, m);
    if (ModulePatterns(*targets).matches("lm_head")) plan.head = scheme;
    if (is_all) targets.reset();
    (is_all ? defaults : plan.rules).push_back({std::move(targets), scheme});
  }
  // Groups with named modules precede the default.
  for (Rule& rule : defaults) plan.rules.push_back(std::move(rule));
  return plan;
}

constexpr Dtype kWiden = Dtype::kBf16;  // replaced by the model's type
const std::map<std::string, Scheme> kModelopt{{"FP8", {8, Dtype::kFp8}},
                                              {"FP8_PER_CHANNEL_PER_TOKEN", {8, Dtype::kFp8}},
                                              {"FP8_PB_WO", {8 + 32.0 / (128 * 128), kWiden}},
                                              {"NVFP4", {4 + 8.0 / 16, Dtype::kFp4}},
                                              {"NVFP4_AWQ", {4 + 8.0 / 16, Dtype::kFp4}},
                                              {"W4A16_NVFP4", {4 + 8.0 / 16, kWiden}},
                                              {"W4A16_AWQ", {4 + 16.0 / 128, kWiden}},
                                              {"W4A8_AWQ", {4 + 16.0 / 128, Dtype::kFp8}},
                                              {"INT8_SQ", {8, Dtype::kInt8}},
                                              {"MXFP8", {8 + 8.0 / 32, Dtype::kFp8}}};

// By scheme, as load_model_file() groups them.
void read_quantized_layers(Params& q, const ModelSpec& m, Plan& plan) {
  Params layers = q.child("quantized_layers", "quantized_layers");
  for (const std::string& algorithm : layers.keys()) {
    const std::vector<std::string> names = layers.words(algorithm, "its modules");
    const Scheme scheme = modelopt_scheme(q, algorithm, m);
    if (ModulePatterns(names).matches("lm_head")) plan.head = scheme;
    plan.rules.push_back({names, scheme});
  }
}

// True for parts of a multimodal model other than text.
bool is_of_other_tower(const std::string& pattern) {
  for (const char* word : {"vision", "visual", "audio", "multi_modal_projector", "encoder.", "image", "mm_projector"})
    if (pattern.find(word) != std::string::npos) return true;
  return false;
}

std::string from_layers(const std::string& pattern) {
  const std::size_t at = pattern.find("layers.");
  return at == std::string::npos ? "" : pattern.substr(at);
}

// A star matches any text; a match ends at the end of a module's name.
std::string expression_of(const std::string& stars) {
  std::string text;
  for (const char c : stars) {
    if (c == '*') {
      text += ".*";
    } else {
      if (std::string_view(".^$|()[]{}+?\\").find(c) != std::string_view::npos) text += '\\';
      text += c;
    }
  }
  return text + "(\\..*)?$";
}

std::regex compiled(const std::string& expression) {
  try {
    return std::regex(expression, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error&) {
    throw InputError("'" + expression + "' is not a regular expression");
  }
}

using Part = ModuleOfLayer::Part;

// Gate (if any), up and down; `parameters` each.
void add_mlp(const ModelSpec& m, Part part, std::int64_t parameters, const std::string& layer, const std::vector<std::string>& places,
             std::vector<ModuleOfLayer>& modules) {
  const auto add = [&](std::initializer_list<const char*> names) {
    ModuleOfLayer module{part, parameters, {}};
    for (const std::string& place : places)
      for (const char* name : names) module.names.push_back(layer + place + name);
    modules.push_back(std::move(module));
  };
  if (m.gated_mlp) add({"gate_proj", "gate_up_proj", "w1"});
  add({"up_proj", "gate_up_proj", "w3"});
  add({"down_proj", "w2"});
}

std::vector<ModuleOfLayer> latent_modules(const ModelSpec& m, const std::string& at) {
  const LatentAttention& l = m.latent;
  const std::int64_t q_width = m.q_heads * (l.nope + l.rope);
  std::vector<ModuleOfLayer> modules{{Part::kAttention, m.hidden * l.cached(), {at + "kv_a_proj_with_mqa"}},
                                     {Part::kAttention, l.kv_rank * m.q_heads * (l.nope + l.value), {at + "kv_b_proj"}},
                                     {Part::kAttention, m.q_heads * l.value * m.hidden, {at + "o_proj"}}};
  if (l.q_rank == 0) {
    modules.push_back({Part::kAttention, m.hidden * q_width, {at + "q_proj"}});
  } else {
    modules.push_back({Part::kAttention, m.hidden * l.q_rank, {at + "q_a_proj"}});
    modules.push_back({Part::kAttention, l.q_rank * q_width, {at + "q_b_proj"}});
  }
  return modules;
}

std::vector<ModuleOfLayer> linear_modules(const ModelSpec& m, const std::string& layer) {
  const LinearAttention& l = m.linear;
  const std::string at = layer + "linear_attn.", other = layer + "self_attn.";
  const std::int64_t out = m.hidden * l.value_width();
  if (l.in_columns > 0) {
    const std::string mixer = layer + "mixer.";
    return {{Part::kAttention, m.hidden * l.in_columns + l.inner, {at + "in_proj", mixer + "in_proj", other + "q_proj"}},
            {Part::kAttention, out, {at + "out_proj", mixer + "out_proj", other + "o_proj"}}};
  }
  if (l.rule == LinearAttention::Rule::kDelta) {
    const std::int64_t rates = m.hidden * 2 * l.value_heads;
    return {{Part::kAttention, m.hidden * l.projected_width() - rates, {at + "in_proj_qkvz", at + "in_proj_qkv", at + "in_proj_z"}},
            {Part::kAttention, rates, {at + "in_proj_ba"}},
            {Part::kAttention, out, {at + "out_proj"}}};
  }
  return {{Part::kAttention, m.hidden * (l.projected_width() - l.value_width()), {other + "qkv_proj"}},
          {Part::kAttention, out, {other + "output_gate"}},
          {Part::kAttention, out, {other + "out_proj"}}};
}

std::vector<ModuleOfLayer> compressed_modules(const ModelSpec& m, const LayerClass& layer, const std::string& of_layer) {
  const std::string at = of_layer + "self_attn.", other = of_layer + "attn.";
  const CompressedAttention& c = m.compressed;
  const std::int64_t q = m.q_heads * c.dim, halves = layer.has_index ? 2 : 1;
  const std::int64_t vectors = layer.shape.entry_tokens == 0 ? 0 : 2 * m.hidden * halves * c.dim;
  return {{Part::kAttention, m.hidden * c.q_rank, {at + "q_a_proj", other + "wq_a"}},
          {Part::kAttention, c.q_rank * q, {at + "q_b_proj", other + "wq_b"}},
          {Part::kAttention, m.hidden * c.dim, {at + "kv_proj", other + "wkv"}},
          {Part::kAttention, vectors, {at + "compressor", other + "compressor"}},
          {Part::kAttention, q * c.out_rank, {at + "o_a_proj", other + "wo_a"}},
          {Part::kAttention, c.out_groups * c.out_rank * m.hidden, {at + "o_b_proj", other + "wo_b"}}};
}

std::vector<ModuleOfLayer> own_modules(const ModelSpec& m, const LayerClass& one, const std::string& layer) {
  const std::string at = layer + "self_attn.", mixer = layer + "mixer.";
  if (one.attention == AttentionKind::kNone) return {};
  if (one.attention == AttentionKind::kLatent) return latent_modules(m, at);
  if (one.attention == AttentionKind::kLinear) return linear_modules(m, layer);
  if (one.attention == AttentionKind::kCompressed) return compressed_modules(m, one, layer);
  const HeadShape& h = one.shape.heads;
  const std::int64_t gate = m.attention_gate ? m.hidden * h.out_width() : m.head_gate ? m.hidden * h.q : 0;
  std::vector<ModuleOfLayer> modules{{Part::kAttention, m.hidden * h.q_width() + gate, {at + "q_proj", at + "qkv_proj", mixer + "q_proj"}},
                                     {Part::kAttention, m.hidden * h.out_width(), {at + "o_proj", at + "out_proj", mixer + "o_proj"}}};
  if (h.projected() == 0) return modules;
  const std::int64_t keys = m.hidden * h.kv * h.key_dim;
  modules.push_back({Part::kAttention, keys, {at + "k_proj", at + "qkv_proj", mixer + "k_proj"}});
  if (!h.one_product)
    modules.push_back({Part::kAttention, m.hidden * h.projected() - keys, {at + "v_proj", at + "qkv_proj", mixer + "v_proj"}});
  return modules;
}

std::vector<ModuleOfLayer> attention_modules(const ModelSpec& m, const LayerClass& one, const std::string& layer) {
  std::vector<ModuleOfLayer> modules = own_modules(m, one, layer);
  if (!one.has_index) return modules;
  const SparseIndex& x = m.index;
  const std::string at = layer + "self_attn.indexer";
  const std::int64_t weights = x.query_rank > 0 ? m.hidden * x.heads : 0, keys = m.compressed.exists() ? 4 * x.dim : x.dim;
  modules.push_back({Part::kAttention, (x.query_rank > 0 ? x.query_rank : m.hidden) * x.heads * x.dim, {at + ".wq_b", at + ".q_proj"}});
  modules.push_back({Part::kAttention, m.hidden * keys + weights, {at + ".wk", at + ".weights_proj"}});
  return modules;
}

}  // namespace

QuantizedScheme modelopt_scheme(Params& q, const std::string& algorithm, const ModelSpec& m) {
  const auto found = kModelopt.find(algorithm);
  if (found == kModelopt.end())
    q.fail_at(q.has("quant_algo") ? "quant_algo" : "quant_method",
              fmt::format("'quant_algo' = {} of quantization_config is not priced", algorithm));
  Scheme scheme = found->second;
  if (scheme.compute == kWiden) scheme.compute = m.dtype;
  return scheme;
}

QuantizationPlan read_compressed_tensors(Params& q, ModelSpec& m) {
  check_quantization_keys(q, {"config_groups", "ignore", "kv_cache_scheme", "sparsity_config", "format"});
  const std::string format = q.text("format", "", "how weights are packed");
  constexpr std::string_view kKnown =
      "pack-quantized int-quantized float-quantized naive-quantized nvfp4-pack-quantized mxfp4-pack-quantized mixed-precision";
  if (!format.empty() && !has_word(kKnown, format))
    q.fail_at("format", fmt::format("'format' = {} of quantization_config is not priced", format));
  if (q.has("sparsity_config") && !is_off(q.inline_text("sparsity_config", ""))) {
    Params sparsity = q.child("sparsity_config", "sparsity_config");
    if (sparsity.text("format", "dense", "how sparse weights are stored") != "dense")
      sparsity.fail_at("format", "'sparsity_config' of quantization_config: sparse weights are not priced");
  }
  Plan plan = read_groups(q, m);
  plan.ignored = modules_under(q, {"ignore"});
  read_kv_scheme(q, "kv_cache_scheme", m);
  return plan;
}

QuantizationPlan read_modelopt(Params& outer, ModelSpec& m) {
  Params q = outer.has("quantization") ? outer.child("quantization", "quantization") : outer;
  check_quantization_keys(q, {"quant_algo", "kv_cache_quant_algo", "exclude_modules", "ignore", "config_groups", "kv_cache_scheme",
                              "group_size", "quantization", "has_zero_point", "pre_quant_scale", "quantized_layers"});
  const std::string algorithm = q.text("quant_algo", "how weights and activations are quantized");
  Plan plan;
  if (algorithm != "MIXED_PRECISION")
    plan.rules.push_back({std::nullopt, modelopt_scheme(q, algorithm, m)});
  else if (q.has("quantized_layers"))
    read_quantized_layers(q, m, plan);
  else if (q.has("config_groups"))
    plan = read_groups(q, m);
  else
    q.fail_at("quant_algo", "'quant_algo' = MIXED_PRECISION needs 'quantized_layers' or 'config_groups'");
  plan.ignored = modules_under(q, {"exclude_modules", "ignore"});
  read_kv_scheme(q, "kv_cache_scheme", m);
  const std::string kv = q.text("kv_cache_quant_algo", "", "type of cached keys and values");
  if (!kv.empty() && kv != "FP8" && kv != "INT8")
    q.fail_at("kv_cache_quant_algo", fmt::format("'kv_cache_quant_algo' = {} of quantization_config is not priced; FP8 and INT8 are", kv));
  if (!kv.empty()) m.kv_dtype = kv == "FP8" ? Dtype::kFp8 : Dtype::kInt8;
  return plan;
}

ModulePatterns::ModulePatterns(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with("re:")) {
      expressions_.push_back(compiled(pattern.substr(3)));
    } else if (is_of_other_tower(pattern)) {
      continue;
    } else if (pattern.find('*') != std::string::npos) {
      const std::string layers = from_layers(pattern);
      expressions_.push_back(compiled(expression_of(layers.empty() || pattern.starts_with("*") ? pattern : "model." + layers)));
    } else if (const std::string layers = from_layers(pattern); !layers.empty()) {
      whole_.insert(layers.ends_with('.') ? layers.substr(0, layers.size() - 1) : layers);
    } else {
      parts_.push_back("." + pattern + ".");
    }
  }
}

bool ModulePatterns::matches(const std::string& module) const {
  for (std::size_t at = module.find('.'); !whole_.empty() && at != std::string::npos; at = module.find('.', at + 1))
    if (whole_.contains(module.substr(0, at))) return true;
  if (whole_.contains(module)) return true;
  const std::string dotted = "." + module + ".";
  if (std::any_of(parts_.begin(), parts_.end(), [&](const std::string& p) { return dotted.find(p) != std::string::npos; })) return true;
  return std::any_of(expressions_.begin(), expressions_.end(),
                     [&](const std::regex& e) { return std::regex_search("model." + module, e, std::regex_constants::match_continuous); });
}

std::vector<ModuleOfLayer> modules_of_layer(const ModelSpec& m, std::int64_t layer) {
  const std::string at = "layers." + std::to_string(layer) + ".";
  const LayerClass one = class_of_layer(m, layer);
  std::vector<ModuleOfLayer> modules = attention_modules(m, one, at);
  if (!one.has_experts) {
    if (one.has_mlp()) add_mlp(m, Part::kMlp, m.hidden * one.shape.mlp, at, {"mlp.", "feed_forward.", "mixer."}, modules);
    return modules;
  }
  if (m.family == "gemma4_text") {  // experts are outside the layer's mlp
    add_mlp(m, Part::kExperts, m.experts * m.expert_input() * m.moe_intermediate, at, {"experts.0.", "experts.", "moe.experts.0."},
            modules);
    add_mlp(m, Part::kMlp, m.hidden * m.shared_intermediate, at, {"mlp."}, modules);
    return modules;
  }
  add_mlp(m, Part::kExperts, m.experts * m.expert_input() * m.moe_intermediate, at,
          {"mlp.experts.0.", "mlp.experts.", "block_sparse_moe.experts.0.", "feed_forward.experts.0.", "feed_forward.experts.",
           "mixer.experts.0.", "mixer.experts.", "ffn.experts.0.", "ffn.experts.", "experts.0.", "experts.", "moe.experts.", "moe."},
          modules);
  if (m.shared_intermediate > 0)
    add_mlp(m, Part::kMlp, m.hidden * m.shared_intermediate, at,
            {"mlp.shared_expert.", "mlp.shared_experts.", "feed_forward.shared_expert.", "block_sparse_moe.shared_experts.",
             "mixer.shared_experts.", "ffn.shared_experts."},
            modules);
  if (m.routed_hidden > 0)
    modules.push_back({Part::kMlp, 2 * m.hidden * m.routed_hidden, {at + "mixer.fc1_latent_proj", at + "mlp.routed_expert_down_proj"}});
  return modules;
}

}  // namespace kvlab
