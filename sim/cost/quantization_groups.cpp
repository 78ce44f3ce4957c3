#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

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
  Params groups = q.child("config_groups", "config_groups");
  for (const std::string& name : groups.keys()) {
    Params group = groups.child(name, name);
    std::optional<std::vector<std::string>> targets = group.words("targets", "modules of the group");
    const bool is_all = targets->empty() || std::find(targets->begin(), targets->end(), "Linear") != targets->end();
    const Scheme scheme = read_group_scheme(group, m);
    if (ModulePatterns(*targets).matches("lm_head")) plan.head = scheme;
    plan.rules.push_back({is_all ? std::nullopt : targets, scheme});
  }
  // Groups with named modules precede the default.
  std::stable_sort(plan.rules.begin(), plan.rules.end(), [](const Rule& a, const Rule& b) { return a.targets && !b.targets; });
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

}  // namespace kvlab
