#include "sim/cost/quantization_schemes.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "sim/cost/model_keys.h"
#include "sim/cost/quantized_modules.h"

namespace kvlab {

namespace {

using Scheme = QuantizedScheme;
using Rule = QuantizationPlan::Rule;
using Plan = QuantizationPlan;

constexpr double kScaleBits = 16;  // of one scale where the scheme does not say: the model's 16-bit type

// Bits of `count` values that each group of `group` weights shares; group <= 0: one per row or less.
double shared(double count, std::int64_t group) { return group > 0 ? count / static_cast<double>(group) : 0; }

bool has_key(std::initializer_list<const char*> keys, const std::string& key) {
  return std::any_of(keys.begin(), keys.end(), [&](const char* k) { return key == k; });
}

// Of calibration, files and kernels.
bool is_harmless(const std::string& key) {
  return has_key({"activation_scheme",
                  "amp",
                  "autoround_version",
                  "backend",
                  "batch_size",
                  "bnb_4bit_compute_dtype",
                  "bnb_4bit_quant_storage",
                  "bnb_4bit_quant_type",
                  "cache_block_outputs",
                  "calib_data",
                  "checkpoint_format",
                  "damp_auto_increment",
                  "damp_percent",
                  "data_type",
                  "dataset",
                  "desc_act",
                  "do_fuse",
                  "dequantize",
                  "enable_minmax_tuning",
                  "enable_quanted_input",
                  "exllama_config",
                  "export",
                  "format",
                  "fuse_max_seq_len",
                  "global_compression_ratio",
                  "gradient_accumulate_steps",
                  "group",
                  "is_marlin_format",
                  "iters",
                  "linear_weights_not_to_quantize",
                  "llm_int8_enable_fp32_cpu_offload",
                  "llm_int8_has_fp16_weight",
                  "llm_int8_threshold",
                  "low_gpu_mem_usage",
                  "lr",
                  "max_input_length",
                  "meta",
                  "minmax_lr",
                  "mode",
                  "model_file_base_name",
                  "model_name_or_path",
                  "model_seqlen",
                  "modules_to_fuse",
                  "module_name_preceding_first_block",
                  "not_use_best_mse",
                  "nsamples",
                  "offload_meta",
                  "observer",
                  "packing_format",
                  "pad_token_id",
                  "producer",
                  "quant_method",
                  "quantization_status",
                  "sampler",
                  "scale_dtype",
                  "seqlen",
                  "static_groups",
                  "super_bits",
                  "super_group_size",
                  "sym",
                  "tokenizer",
                  "true_sequential",
                  "use_cuda_fp16",
                  "use_exllama",
                  "version",
                  "zero_point",
                  "fmt",
                  "block_name_to_quantize",
                  "to_quant_block_names",
                  "algo_config",
                  "softmax_quant_spec",
                  "lm_head",
                  "quant_type_kwargs",
                  "train",
                  "cache_examples_on_gpu",
                  "scale_bits",
                  "gguf_file",
                  "optimize_dtype",
                  "axis",
                  "view_as_float",
                  "quant_zero",
                  "quant_scale",
                  "actorder",
                  "block_structure",
                  "dynamic",
                  "strategy",
                  "symmetric",
                  "observer_kwargs",
                  "zp_dtype",
                  "min_memory_available",
                  "pack_dtype",
                  "offload_to_disk",
                  "hyb_act"},
                 key) ||
         key.starts_with("_");
}

// Every key is one of `keys`, changes nothing, or is switched off.
void check_keys(const Params& q, std::initializer_list<const char*> keys) {
  for (const std::string& key : q.keys()) {
    if (has_key(keys, key) || is_harmless(key) || is_off(q.inline_text(key, ""))) continue;
    q.fail_at(key,
              fmt::format("'{}' of quantization_config is not understood and may change weights, KV or FLOPs; if it changes none of them, "
                          "remove it from a copy of the file",
                          key));
  }
}

std::vector<std::string> words_of(Params& q, std::initializer_list<const char*> keys) {
  std::vector<std::string> all;
  for (const char* key : keys) {
    if (!q.has(key)) continue;
    const std::vector<std::string> words = q.words(key, "modules that keep the model's type");
    all.insert(all.end(), words.begin(), words.end());
  }
  return all;
}

std::int64_t group_size(Params& q, const char* key, std::int64_t fallback) {
  return q.optional<std::int64_t>(key, fallback, -1, 1 << 20, "weights that share a scale");
}

Dtype type_of(bool is_float, std::int64_t num_bits, Dtype other) {
  if (num_bits == 8) return is_float ? Dtype::kFp8 : Dtype::kInt8;
  return num_bits == 4 && is_float ? Dtype::kFp4 : other;
}

Plan read_fp8(Params& q, const ModelSpec& /*m*/) {
  check_keys(q, {"weight_block_size", "modules_to_not_convert", "ignored_layers", "ignore", "activation_scale_ub", "kv_cache_scheme"});
  Plan plan;
  Scheme scheme{8, Dtype::kFp8};
  if (q.has("weight_block_size")) {
    const std::vector<double> block = q.numbers("weight_block_size", 1, 1 << 20, "rows and columns that share a scale");
    constexpr double kFp32 = 32;
    if (block.size() == 2) scheme.bits += kFp32 / (block[0] * block[1]);
  }
  plan.ignored = words_of(q, {"modules_to_not_convert", "ignored_layers", "ignore"});
  plan.rules.push_back({std::nullopt, scheme});
  return plan;
}

// Weights alone: GPTQ, AWQ and AutoRound. Zero points are counted where the file says that there are some.
Plan read_integers(Params& q, const ModelSpec& m) {
  check_keys(q, {"bits", "w_bit", "group_size", "q_group_size", "modules_to_not_convert"});
  if (q.has("dynamic") && !is_off(q.inline_text("dynamic", "")))
    q.fail_at("dynamic", "'dynamic' of quantization_config gives modules formats of their own, which is not priced");
  const auto num_bits = q.required<std::int64_t>(q.has("w_bit") ? "w_bit" : "bits", 2, 8, "bits of a weight");
  const std::int64_t group = group_size(q, q.has("q_group_size") ? "q_group_size" : "group_size", 128);
  const bool has_zeros = q.flag("zero_point", false, "weights have a zero point") || !q.flag("sym", true, "no zero point");
  Plan plan;
  const Scheme scheme{static_cast<double>(num_bits) + shared(kScaleBits + (has_zeros ? static_cast<double>(num_bits) : 0), group), m.dtype};
  plan.rules.push_back({std::nullopt, scheme});
  plan.ignored = words_of(q, {"modules_to_not_convert"});
  if (q.flag("lm_head", false, "the head is quantized too")) plan.head = scheme;
  return plan;
}

Plan read_bitsandbytes(Params& q, const ModelSpec& m) {
  check_keys(q, {"load_in_4bit", "load_in_8bit", "llm_int8_skip_modules", "bnb_4bit_use_double_quant"});
  const bool is_four = q.flag("load_in_4bit", false, "4-bit weights"), is_eight = q.flag("load_in_8bit", false, "8-bit weights");
  if (is_four == is_eight) q.fail_at("load_in_4bit", "quantization_config of bitsandbytes needs 'load_in_4bit' or 'load_in_8bit': true");
  const bool is_double = q.flag("bnb_4bit_use_double_quant", false, "scales are quantized");
  constexpr std::int64_t kBlock = 64, kOfScales = 256;  // weights that share a scale; scales that share one of theirs
  const double scales = is_double ? shared(8, kBlock) + shared(32, kBlock * kOfScales) : shared(32, kBlock);
  Plan plan;
  plan.rules.push_back({std::nullopt, {is_four ? 4 + scales : 8, m.dtype}});
  plan.ignored = words_of(q, {"llm_int8_skip_modules"});
  return plan;
}

// compressed-tensors: one group of modules.
Scheme read_group_scheme(Params& group, const ModelSpec& m) {
  check_keys(group, {"targets", "weights", "input_activations", "output_activations"});
  if (!group.has("weights")) return {static_cast<double>(bits(m.dtype)), m.dtype};
  Params w = group.child("weights", "weights");
  check_keys(w, {"num_bits", "type", "group_size"});
  const auto num_bits = w.required<std::int64_t>("num_bits", 2, 16, "bits of a weight");
  const bool is_float = w.choice("type", {"int", "float"}, 0, "kind of number") == 1;
  const std::int64_t size = group_size(w, "group_size", -1);
  const bool is_small_float = is_float && num_bits == 4;  // NVFP4, MXFP4: scales of 8 bits
  double per_group = is_small_float ? 8 : kScaleBits;
  if (!w.flag("symmetric", true, "no zero point")) per_group += static_cast<double>(num_bits);
  Scheme scheme{static_cast<double>(num_bits) + shared(per_group, size), m.dtype};
  if (!group.has("input_activations")) return scheme;
  Params a = group.child("input_activations", "input_activations");
  check_keys(a, {"num_bits", "type", "group_size"});
  const bool is_float_too = a.choice("type", {"int", "float"}, 0, "kind of number") == 1;
  scheme.compute = type_of(is_float_too, a.required<std::int64_t>("num_bits", 2, 16, "bits of an activation"), m.dtype);
  return scheme;
}

void read_kv_scheme(Params& q, const char* key, ModelSpec& m) {
  if (!q.has(key)) return;
  Params kv = q.child(key, key);
  check_keys(kv, {"num_bits", "type", "dtype", "qscheme", "group_size", "ch_axis", "is_dynamic", "scale_type"});
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
  // Groups that name modules come before the one that takes the rest.
  std::stable_sort(plan.rules.begin(), plan.rules.end(), [](const Rule& a, const Rule& b) { return a.targets && !b.targets; });
  return plan;
}

Plan read_compressed_tensors(Params& q, ModelSpec& m) {
  check_keys(q, {"config_groups", "ignore", "kv_cache_scheme", "sparsity_config", "format"});
  const std::string format = q.text("format", "", "how weights are packed");
  const auto is_one_of = [&](std::initializer_list<const char*> names) { return has_key(names, format); };
  if (!is_one_of({"", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
                  "mxfp4-pack-quantized", "mixed-precision"}))
    q.fail_at("format", fmt::format("'format' = {} of quantization_config is not priced", format));
  if (q.has("sparsity_config") && !is_off(q.inline_text("sparsity_config", ""))) {
    Params sparsity = q.child("sparsity_config", "sparsity_config");
    if (sparsity.text("format", "dense", "how sparse weights are stored") != "dense")
      sparsity.fail_at("format", "'sparsity_config' of quantization_config: sparse weights are not priced");
  }
  Plan plan = read_groups(q, m);
  plan.ignored = words_of(q, {"ignore"});
  read_kv_scheme(q, "kv_cache_scheme", m);
  return plan;
}

const std::map<std::string, Scheme>& modelopt_algorithms() {
  constexpr Dtype kWiden = Dtype::kBf16;  // replaced by the model's type
  static const std::map<std::string, Scheme> all{{"FP8", {8, Dtype::kFp8}},
                                                 {"FP8_PER_CHANNEL_PER_TOKEN", {8, Dtype::kFp8}},
                                                 {"FP8_PB_WO", {8 + 32.0 / (128 * 128), kWiden}},
                                                 {"NVFP4", {4 + 8.0 / 16, Dtype::kFp4}},
                                                 {"NVFP4_AWQ", {4 + 8.0 / 16, Dtype::kFp4}},
                                                 {"W4A16_NVFP4", {4 + 8.0 / 16, kWiden}},
                                                 {"W4A16_AWQ", {4 + 16.0 / 128, kWiden}},
                                                 {"W4A8_AWQ", {4 + 16.0 / 128, Dtype::kFp8}},
                                                 {"INT8_SQ", {8, Dtype::kInt8}}};
  return all;
}

Plan read_modelopt(Params& outer, ModelSpec& m) {
  Params q = outer.has("quantization") ? outer.child("quantization", "quantization") : outer;
  check_keys(q, {"quant_algo", "kv_cache_quant_algo", "exclude_modules", "ignore", "config_groups", "kv_cache_scheme", "group_size",
                 "quantization", "has_zero_point", "pre_quant_scale"});
  const std::string algorithm = q.text("quant_algo", "how weights and activations are quantized");
  const auto found = modelopt_algorithms().find(algorithm);
  if (found == modelopt_algorithms().end())
    q.fail_at("quant_algo", fmt::format("'quant_algo' = {} of quantization_config is not priced", algorithm));
  Plan plan;
  Scheme scheme = found->second;
  if (scheme.compute == Dtype::kBf16) scheme.compute = m.dtype;
  plan.rules.push_back({std::nullopt, scheme});
  plan.ignored = words_of(q, {"exclude_modules", "ignore"});
  read_kv_scheme(q, "kv_cache_scheme", m);
  const std::string kv = q.text("kv_cache_quant_algo", "", "type of cached keys and values");
  if (kv != "" && kv != "FP8" && kv != "INT8")
    q.fail_at("kv_cache_quant_algo", fmt::format("'kv_cache_quant_algo' = {} of quantization_config is not priced; FP8 and INT8 are", kv));
  if (!kv.empty()) m.kv_dtype = kv == "FP8" ? Dtype::kFp8 : Dtype::kInt8;
  return plan;
}

Plan read_mxfp4(Params& q, const ModelSpec& m) {
  check_keys(q, {"modules_to_not_convert"});
  Plan plan;
  plan.rules.push_back({std::nullopt, {4 + 8.0 / 32, m.dtype}});
  plan.ignored = words_of(q, {"modules_to_not_convert"});
  plan.experts_only = m.family == "gpt_oss";
  return plan;
}

Plan read_hqq(Params& q, const ModelSpec& m) {
  check_keys(q, {"quant_config", "skip_modules"});
  Params config = q.child("quant_config", "quant_config");
  check_keys(config, {"weight_quant_params", "scale_quant_params", "zero_quant_params"});
  Params w = config.child("weight_quant_params", "weight_quant_params");
  check_keys(w, {"nbits", "group_size", "channel_wise", "round_zero"});
  Plan plan;
  const auto num_bits = w.required<std::int64_t>("nbits", 1, 8, "bits of a weight");
  plan.rules.push_back({std::nullopt, {static_cast<double>(num_bits) + shared(2 * kScaleBits, group_size(w, "group_size", 64)), m.dtype}});
  plan.ignored = words_of(q, {"skip_modules"});
  return plan;
}

Plan read_torchao(Params& q, const ModelSpec& m) {
  check_keys(q, {"quant_type", "modules_to_not_convert"});
  std::string type = q.inline_text("quant_type", "");
  Params kwargs = q.optional_child("quant_type_kwargs", "quant_type_kwargs");
  std::int64_t group = group_size(kwargs, "group_size", 128);
  if (type.starts_with("{")) {  // as newer releases write it: {default: {_type: Int4WeightOnlyConfig, _data: {group_size: 128}}}
    Params outer = q.child("quant_type", "quant_type");
    check_keys(outer, {"default"});
    Params inner = outer.child("default", "default");
    type = inner.text("_type", "the scheme");
    Params data = inner.optional_child("_data", "_data");
    group = group_size(data, "group_size", 128);
  }
  const std::map<std::string, Scheme> known{{"int4_weight_only", {4 + shared(2 * kScaleBits, group), m.dtype}},
                                            {"Int4WeightOnlyConfig", {4 + shared(2 * kScaleBits, group), m.dtype}},
                                            {"int8_weight_only", {8, m.dtype}},
                                            {"Int8WeightOnlyConfig", {8, m.dtype}},
                                            {"float8_weight_only", {8, m.dtype}},
                                            {"Float8WeightOnlyConfig", {8, m.dtype}},
                                            {"int8_dynamic_activation_int8_weight", {8, Dtype::kInt8}},
                                            {"Int8DynamicActivationInt8WeightConfig", {8, Dtype::kInt8}},
                                            {"float8_dynamic_activation_float8_weight", {8, Dtype::kFp8}},
                                            {"Float8DynamicActivationFloat8WeightConfig", {8, Dtype::kFp8}},
                                            {"int4wo", {4 + shared(2 * kScaleBits, group), m.dtype}},
                                            {"int8wo", {8, m.dtype}}};
  const auto found = known.find(type);
  if (found == known.end()) q.fail_at("quant_type", fmt::format("'quant_type' = {} of quantization_config (torchao) is not priced", type));
  Plan plan;
  plan.rules.push_back({std::nullopt, found->second});
  plan.ignored = words_of(q, {"modules_to_not_convert"});
  return plan;
}

// Quark: a type by its name, and the scales of groups.
Scheme quark_scheme(Params& tensor, Dtype other) {
  check_keys(tensor, {"dtype", "qscheme", "ch_axis", "group_size", "is_dynamic", "round_method", "scale_type", "scale_format",
                      "observer_cls", "is_scale_quant", "mx_element_dtype", "scale_calculation_mode", "is_qat_enabled"});
  const std::string name = tensor.text("dtype", "type of the numbers");
  const std::int64_t group = group_size(tensor, "group_size", -1);
  if (name.starts_with("fp8")) return {8, Dtype::kFp8};
  if (name == "int8" || name == "uint8") return {8, Dtype::kInt8};
  if (name == "int4" || name == "uint4") return {4 + shared(kScaleBits, group), other};
  if (name == "fp4" || name == "mxfp4") return {4 + shared(8, group > 0 ? group : 32), Dtype::kFp4};
  tensor.fail_at("dtype", fmt::format("'dtype' = {} of quantization_config (quark) is not priced", name));
}

Plan read_quark(Params& q, ModelSpec& m) {
  check_keys(q, {"global_quant_config", "exclude", "kv_cache_quant_config", "kv_cache_group", "kv_cache_post_rope"});
  Params all = q.child("global_quant_config", "global_quant_config");
  check_keys(all, {"weight", "input_tensors", "output_tensors", "bias", "target_device"});
  Params weight = all.child("weight", "weight");
  Scheme scheme{quark_scheme(weight, m.dtype).bits, m.dtype};
  if (all.has("input_tensors")) {
    Params inputs = all.child("input_tensors", "input_tensors");
    scheme.compute = quark_scheme(inputs, m.dtype).compute;
  }
  if (q.has("kv_cache_quant_config") && !is_off(q.inline_text("kv_cache_quant_config", "")))
    q.fail_at("kv_cache_quant_config",
              "'kv_cache_quant_config' of quantization_config is not priced; give 'kv_cache_dtype: fp8' in a copy");
  Plan plan;
  plan.rules.push_back({std::nullopt, scheme});
  plan.ignored = words_of(q, {"exclude"});
  return plan;
}

Plan read_aqlm(Params& q, ModelSpec& m) {
  check_keys(q, {"nbits_per_codebook", "num_codebooks", "in_group_size", "out_group_size", "linear_weights_not_to_quantize"});
  const auto index = q.optional<std::int64_t>("nbits_per_codebook", 16, 1, 32, "bits of an index"),
             books = q.optional<std::int64_t>("num_codebooks", 1, 1, 64, "indices of a group"),
             in = q.optional<std::int64_t>("in_group_size", 8, 1, 1 << 16, "columns of a group"),
             out = q.optional<std::int64_t>("out_group_size", 1, 1, 1 << 16, "rows of a group");
  Plan plan;
  plan.rules.push_back({std::nullopt, {static_cast<double>(index * books) / static_cast<double>(in * out), m.dtype}});
  for (const std::string& name : words_of(q, {"linear_weights_not_to_quantize"}))
    plan.ignored.push_back(name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name);
  m.remarks.emplace_back("the codebooks of aqlm are not counted in the weights");
  return plan;
}

using Reader = std::function<Plan(Params&, ModelSpec&)>;

const std::map<std::string, Reader>& readers() {
  static const std::map<std::string, Reader> all{{"fp8", read_fp8},
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
  return all;
}

// quant_method, or what the other keys make of it.
std::string method_of(Params& q) {
  if (q.has("quant_method")) return q.text("quant_method", "how weights are quantized");
  if (q.has("load_in_4bit") || q.has("load_in_8bit")) return "bitsandbytes";
  if (q.has("config_groups")) return "compressed-tensors";
  if (q.has("quant_algo") || q.has("quantization")) return "modelopt";
  return "";
}

}  // namespace

QuantizationPlan read_quantization_plan(Params& q, ModelSpec& m) {
  m.quantization = method_of(q);
  const auto reader = readers().find(m.quantization);
  if (reader != readers().end()) return reader->second(q, m);
  std::vector<std::string> known;
  for (const auto& [name, unused] : readers()) known.push_back(name);
  const std::string priced = "; known: " + join(known, ", ");
  if (m.quantization.empty()) q.fail("quantization_config has no 'quant_method'" + priced);
  q.fail_at("quant_method", "quantization_config: 'quant_method' = " + m.quantization + " is not priced" + priced);
}

}  // namespace kvlab
