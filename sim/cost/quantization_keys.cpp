#include "sim/cost/quantization_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

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

}  // namespace kvlab
