#include "sim/cost/quantization_schemes.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "sim/cost/model_families.h"

namespace kvlab {

namespace {

bool is_one_of_keys(std::initializer_list<const char*> keys, const std::string& key) {
  return std::any_of(keys.begin(), keys.end(), [&](const char* k) { return key == k; });
}

// Keys of calibration, files and kernels.
constexpr std::string_view kHarmlessQuantizationKeys =
    "activation_scheme amp autoround_version backend batch_size bnb_4bit_compute_dtype bnb_4bit_quant_storage bnb_4bit_quant_type "
    "cache_block_outputs calib_data checkpoint_format damp_auto_increment damp_percent data_type dataset desc_act do_fuse "
    "dequantize enable_minmax_tuning enable_quanted_input exllama_config export format fuse_max_seq_len global_compression_ratio "
    "gradient_accumulate_steps group is_marlin_format iters linear_weights_not_to_quantize llm_int8_enable_fp32_cpu_offload "
    "llm_int8_has_fp16_weight llm_int8_threshold low_gpu_mem_usage lr max_input_length meta minmax_lr mode model_file_base_name "
    "model_name_or_path model_seqlen modules_to_fuse module_name_preceding_first_block not_use_best_mse nsamples offload_meta "
    "observer packing_format pad_token_id producer quant_method quantization_status sampler scale_dtype scale_fmt seqlen "
    "static_groups super_bits super_group_size sym tokenizer true_sequential use_cuda_fp16 use_exllama version zero_point fmt "
    "block_name_to_quantize to_quant_block_names algo_config softmax_quant_spec lm_head quant_type_kwargs train "
    "cache_examples_on_gpu scale_bits gguf_file optimize_dtype axis view_as_float quant_zero quant_scale actorder block_structure "
    "dynamic strategy symmetric observer_kwargs zp_dtype min_memory_available pack_dtype offload_to_disk quant_mode uri quantizer "
    "pre_quant_opt_config log_severity_level hyb_act";

bool is_harmless_quantization_key(std::string_view key) { return key.starts_with("_") || has_word(kHarmlessQuantizationKeys, key); }

using Scheme = QuantizedScheme;

struct PartSum {
  double parameters = 0, bits = 0;
  std::array<double, kNumDtypes> by_type{};

  void add(std::int64_t count, const Scheme& scheme) {
    const auto n = static_cast<double>(count);
    parameters += n;
    bits += n * scheme.bits;
    by_type[static_cast<std::size_t>(scheme.compute)] += n;
  }
  void to(WeightFormat& format) const {
    if (parameters == 0) return;
    format.bits = bits / parameters;
    for (std::size_t t = 0; t < kNumDtypes; ++t) format.share[t] = by_type[t] / parameters;
  }
};

void apply(const QuantizationPlan& plan, ModelSpec& m) {
  const Scheme plain{static_cast<double>(bits(m.dtype)), m.dtype};
  const ModulePatterns ignored(plan.ignored);
  std::vector<std::optional<ModulePatterns>> targets;
  for (const QuantizationPlan::Rule& rule : plan.rules)
    targets.push_back(rule.targets ? std::optional<ModulePatterns>(*rule.targets) : std::nullopt);
  const auto any = [](const ModulePatterns& patterns, const ModuleOfLayer& module) {
    return std::any_of(module.names.begin(), module.names.end(), [&](const std::string& name) { return patterns.matches(name); });
  };
  const auto scheme_of = [&](const ModuleOfLayer& module) {
    if ((plan.experts_only && module.part != ModuleOfLayer::Part::kExperts) || any(ignored, module)) return plain;
    for (std::size_t r = 0; r < plan.rules.size(); ++r)
      if (!targets[r] || any(*targets[r], module)) return plan.rules[r].scheme;
    return plain;
  };
  std::array<PartSum, 3> sums;
  for (std::int64_t layer = 0; layer < m.layers; ++layer)
    for (const ModuleOfLayer& module : modules_of_layer(m, layer))
      sums[static_cast<std::size_t>(module.part)].add(module.parameters, scheme_of(module));
  sums[0].to(m.attention_weights);
  sums[1].to(m.mlp_weights);
  sums[2].to(m.expert_weights);
  if (!plan.head || m.tied_embeddings) return;
  m.head_weights.bits = plan.head->bits;
  m.head_weights.share = {};
  m.head_weights.share[static_cast<std::size_t>(plan.head->compute)] = 1;
}

using Rule = QuantizationPlan::Rule;
using Plan = QuantizationPlan;

// `keys`: of modules that keep the model's type.
Plan plan_of(const Scheme& scheme, Params& q, std::initializer_list<const char*> keys) {
  Plan plan;
  plan.rules.push_back({std::nullopt, scheme});
  plan.ignored = modules_under(q, keys);
  return plan;
}

Plan read_fp8(Params& q, const ModelSpec& m) {
  check_quantization_keys(
      q, {"weight_block_size", "modules_to_not_convert", "ignored_layers", "ignore", "activation_scale_ub", "kv_cache_scheme",
          "moe_quant_algo", "config_groups", "quant_algo", "quantized_layers", "group_size", "expert_dtype"});
  Scheme scheme{8, Dtype::kFp8};
  if (q.has("weight_block_size")) {
    const std::vector<double> block = q.numbers("weight_block_size", 1, 1 << 20, "rows and columns that share a scale");
    constexpr double kFp32 = 32;
    if (block.size() == 2) scheme.bits += kFp32 / (block[0] * block[1]);
  }
  if (q.has("moe_quant_algo")) {  // 'ignore' and config_groups are then the experts'
    Plan plan;
    plan.rules.push_back({std::vector<std::string>{"experts"}, modelopt_scheme(q, q.text("moe_quant_algo", "scheme of the experts"), m)});
    plan.rules.push_back({std::nullopt, scheme});
    return plan;
  }
  for (const char* key : {"config_groups", "quant_algo", "quantized_layers"})
    if (q.has(key)) q.fail_at(key, fmt::format("'{}' of quantization_config is not understood with 'quant_method: fp8'", key));
  return plan_of(scheme, q, {"modules_to_not_convert", "ignored_layers", "ignore"});
}

// GPTQ, AWQ, AutoRound. Counts zero points in the file.
Plan read_integers(Params& q, const ModelSpec& m) {
  check_quantization_keys(q, {"bits", "w_bit", "group_size", "q_group_size", "modules_to_not_convert", "act_bits", "act_data_type",
                              "act_dynamic", "act_group_size", "act_sym"});
  if (q.optional<std::int64_t>("act_bits", 16, 1, 64, "bits of an activation") < 16)
    q.fail_at("act_bits", "'act_bits' of quantization_config: only activations of 16 bits are priced for this method");
  if (q.has("dynamic") && !is_off(q.inline_text("dynamic", "")))
    q.fail_at("dynamic", "'dynamic' of quantization_config gives modules formats of their own, which is not priced");
  const auto num_bits = q.required<std::int64_t>(q.has("w_bit") ? "w_bit" : "bits", 2, 8, "bits of a weight");
  const std::int64_t group = read_group_size(q, q.has("q_group_size") ? "q_group_size" : "group_size", 128);
  const bool has_zeros = q.flag("zero_point", false, "weights have a zero point") || !q.flag("sym", true, "no zero point");
  const Scheme scheme{static_cast<double>(num_bits) + share_of_group(kScaleBits + (has_zeros ? static_cast<double>(num_bits) : 0), group),
                      m.dtype};
  Plan plan = plan_of(scheme, q, {"modules_to_not_convert"});
  if (q.flag("lm_head", false, "the head is quantized too")) plan.head = scheme;
  return plan;
}

Plan read_bitsandbytes(Params& q, const ModelSpec& m) {
  check_quantization_keys(q, {"load_in_4bit", "load_in_8bit", "llm_int8_skip_modules", "bnb_4bit_use_double_quant"});
  const bool is_four = q.flag("load_in_4bit", false, "4-bit weights"), is_eight = q.flag("load_in_8bit", false, "8-bit weights");
  if (is_four == is_eight) q.fail_at("load_in_4bit", "quantization_config of bitsandbytes needs 'load_in_4bit' or 'load_in_8bit': true");
  const bool is_double = q.flag("bnb_4bit_use_double_quant", false, "scales are quantized");
  constexpr std::int64_t kBlock = 64, kOfScales = 256;  // weights per scale; scales per scale of scales
  const double scales = is_double ? share_of_group(8, kBlock) + share_of_group(32, kBlock * kOfScales) : share_of_group(32, kBlock);
  return plan_of({is_four ? 4 + scales : 8, m.dtype}, q, {"llm_int8_skip_modules"});
}

Plan read_mxfp4(Params& q, const ModelSpec& m) {
  check_quantization_keys(q, {"modules_to_not_convert"});
  Plan plan = plan_of({4 + 8.0 / 32, m.dtype}, q, {"modules_to_not_convert"});
  plan.experts_only = m.family == "gpt_oss";
  return plan;
}

Plan read_hqq(Params& q, const ModelSpec& m) {
  check_quantization_keys(q, {"quant_config", "skip_modules"});
  Params config = q.child("quant_config", "quant_config");
  check_quantization_keys(config, {"weight_quant_params", "scale_quant_params", "zero_quant_params"});
  Params w = config.child("weight_quant_params", "weight_quant_params");
  check_quantization_keys(w, {"nbits", "group_size", "channel_wise", "round_zero"});
  const auto num_bits = w.required<std::int64_t>("nbits", 1, 8, "bits of a weight");
  const double scales = share_of_group(2 * kScaleBits, read_group_size(w, "group_size", 64));
  return plan_of({static_cast<double>(num_bits) + scales, m.dtype}, q, {"skip_modules"});
}

Plan read_torchao(Params& q, const ModelSpec& m) {
  check_quantization_keys(q, {"quant_type", "modules_to_not_convert"});
  std::string type = q.inline_text("quant_type", "");
  Params kwargs = q.optional_child("quant_type_kwargs", "quant_type_kwargs");
  std::int64_t group = read_group_size(kwargs, "group_size", 128);
  if (type.starts_with("{")) {  // newer: {default: {_type: Int4WeightOnlyConfig, _data: {group_size: 128}}}
    Params outer = q.child("quant_type", "quant_type");
    check_quantization_keys(outer, {"default"});
    Params inner = outer.child("default", "default");
    type = inner.text("_type", "the scheme");
    Params data = inner.optional_child("_data", "_data");
    group = read_group_size(data, "group_size", 128);
  }
  const std::pair<const char*, Scheme> known[] = {
      {"int4_weight_only Int4WeightOnlyConfig int4wo", {4 + share_of_group(2 * kScaleBits, group), m.dtype}},
      {"int8_weight_only Int8WeightOnlyConfig int8wo float8_weight_only Float8WeightOnlyConfig", {8, m.dtype}},
      {"int8_dynamic_activation_int8_weight Int8DynamicActivationInt8WeightConfig", {8, Dtype::kInt8}},
      {"float8_dynamic_activation_float8_weight Float8DynamicActivationFloat8WeightConfig", {8, Dtype::kFp8}}};
  for (const auto& [names, scheme] : known)
    if (has_word(names, type)) return plan_of(scheme, q, {"modules_to_not_convert"});
  q.fail_at("quant_type", fmt::format("'quant_type' = {} of quantization_config (torchao) is not priced", type));
}

// Quark: named type, group scales.
Scheme quark_scheme(Params& tensor, Dtype other) {
  check_quantization_keys(tensor, {"dtype", "qscheme", "ch_axis", "group_size", "is_dynamic", "round_method", "scale_type", "scale_format",
                                   "observer_cls", "is_scale_quant", "mx_element_dtype", "scale_calculation_mode", "is_qat_enabled"});
  const std::string name = tensor.text("dtype", "type of the numbers");
  const std::int64_t group = read_group_size(tensor, "group_size", -1);
  if (name.starts_with("fp8")) return {8, Dtype::kFp8};
  if (name == "int8" || name == "uint8") return {8, Dtype::kInt8};
  if (name == "int4" || name == "uint4") return {4 + share_of_group(kScaleBits, group), other};
  if (name == "fp4" || name == "mxfp4") return {4 + share_of_group(8, group > 0 ? group : 32), Dtype::kFp4};
  tensor.fail_at("dtype", fmt::format("'dtype' = {} of quantization_config (quark) is not priced", name));
}

Plan read_quark(Params& q, ModelSpec& m) {
  check_quantization_keys(q, {"global_quant_config", "exclude", "kv_cache_quant_config", "kv_cache_group", "kv_cache_post_rope"});
  Params all = q.child("global_quant_config", "global_quant_config");
  check_quantization_keys(all, {"weight", "input_tensors", "output_tensors", "bias", "target_device"});
  Params weight = all.child("weight", "weight");
  Scheme scheme{quark_scheme(weight, m.dtype).bits, m.dtype};
  if (all.has("input_tensors")) {
    Params inputs = all.child("input_tensors", "input_tensors");
    scheme.compute = quark_scheme(inputs, m.dtype).compute;
  }
  if (q.has("kv_cache_quant_config") && !is_off(q.inline_text("kv_cache_quant_config", "")))
    q.fail_at("kv_cache_quant_config",
              "'kv_cache_quant_config' of quantization_config is not priced; give 'kv_cache_dtype: fp8' in a copy");
  return plan_of(scheme, q, {"exclude"});
}

Plan read_aqlm(Params& q, ModelSpec& m) {
  check_quantization_keys(q, {"nbits_per_codebook", "num_codebooks", "in_group_size", "out_group_size", "linear_weights_not_to_quantize"});
  const auto index = q.optional<std::int64_t>("nbits_per_codebook", 16, 1, 32, "bits of an index"),
             books = q.optional<std::int64_t>("num_codebooks", 1, 1, 64, "indices of a group"),
             in = q.optional<std::int64_t>("in_group_size", 8, 1, 1 << 16, "columns of a group"),
             out = q.optional<std::int64_t>("out_group_size", 1, 1, 1 << 16, "rows of a group");
  const Scheme scheme{static_cast<double>(index * books) / static_cast<double>(in * out), m.dtype};
  Plan plan = plan_of(scheme, q, {"linear_weights_not_to_quantize"});
  for (std::string& name : plan.ignored)
    if (name.ends_with(".weight")) name.resize(name.size() - 7);
  m.remarks.emplace_back("the codebooks of aqlm are not counted in the weights");
  return plan;
}

using Reader = std::function<Plan(Params&, ModelSpec&)>;

const std::map<std::string, Reader> kReaders{{"fp8", read_fp8},
                                             {"fbgemm_fp8", read_fp8},
                                             {"gptq", read_integers},
                                             {"gptq_marlin", read_integers},
                                             {"awq", read_integers},
                                             {"awq_marlin", read_integers},
                                             {"auto-round", read_integers},
                                             {"intel/auto-round", read_integers},
                                             {"bitsandbytes", read_bitsandbytes},
                                             {"compressed-tensors", read_compressed_tensors},
                                             {"modelopt", read_modelopt},
                                             {"modelopt_fp4", read_modelopt},
                                             {"mxfp4", read_mxfp4},
                                             {"hqq", read_hqq},
                                             {"torchao", read_torchao},
                                             {"quark", read_quark},
                                             {"aqlm", read_aqlm}};

// quant_method, or implied by other keys.
std::string method_of(Params& q) {
  if (q.has("quant_method")) return q.text("quant_method", "how weights are quantized");
  if (q.has("load_in_4bit") || q.has("load_in_8bit")) return "bitsandbytes";
  if (q.has("quant_algo") || q.has("quantization")) return "modelopt";
  if (q.has("config_groups")) return "compressed-tensors";
  return "";
}

Plan read_plan(Params& q, ModelSpec& m) {
  m.quantization = method_of(q);
  const auto reader = kReaders.find(m.quantization);
  if (reader != kReaders.end()) return reader->second(q, m);
  std::vector<std::string> known;
  for (const auto& [name, unused] : kReaders) known.push_back(name);
  const std::string priced = "; known: " + join(known, ", ");
  if (m.quantization.empty()) q.fail("quantization_config has no 'quant_method'" + priced);
  q.fail_at("quant_method", "quantization_config: 'quant_method' = " + m.quantization + " is not priced" + priced);
}

}  // namespace

void check_quantization_keys(const Params& q, std::initializer_list<const char*> keys) {
  for (const std::string& key : q.keys()) {
    if (is_one_of_keys(keys, key) || is_harmless_quantization_key(key) || is_off(q.inline_text(key, ""))) continue;
    q.fail_at(key,
              fmt::format("'{}' of quantization_config is not understood and may change weights, KV or FLOPs; if it changes none of them, "
                          "remove it from a copy of the file",
                          key));
  }
}

std::vector<std::string> modules_under(Params& q, std::initializer_list<const char*> keys) {
  std::vector<std::string> all;
  for (const char* key : keys) {
    if (!q.has(key)) continue;
    const std::vector<std::string> words = q.words(key, "modules that keep the model's type");
    all.insert(all.end(), words.begin(), words.end());
  }
  return all;
}

std::int64_t read_group_size(Params& q, const char* key, std::int64_t fallback) {
  return q.optional<std::int64_t>(key, fallback, -1, 1 << 20, "weights that share a scale");
}

void read_quantization(Params& q, bool kv_is_given, ModelSpec& m) {
  const Dtype kv = m.kv_dtype;
  const QuantizationPlan plan = read_plan(q, m);
  if (kv_is_given) m.kv_dtype = kv;
  try {
    apply(plan, m);
  } catch (const InputError& e) {
    q.fail(std::string("quantization_config: ") + e.what());
  }
}

}  // namespace kvlab
