#include <algorithm>

#include "base/config/spec_file.h"
#include "sim/cost/model_families.h"
#include "sim/cost/model_file.h"
#include "sim/cost/model_spec.h"
#include "tests/sim/cost_support.h"
#include "tests/sim/published_models.h"

namespace kvlab {
namespace {

const std::string kModels = KVLAB_SOURCE_DIR "/profiles/models";
// Keys that transformers writes into every config.json.
const std::string kWritten =
    R"("transformers_version": "4.57.1", "torch_dtype": "bfloat16", "use_cache": true, "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null,
       "initializer_range": 0.02, "attention_dropout": 0.0, "rms_norm_eps": 1e-05, "_name_or_path": "x", "id2label": {"0": "LABEL_0"}, "hidden_act": "silu")";

ModelSpec spec_of(const std::string& keys) {
  const TempFolder folder;
  folder.write("M/config.json", "{" + kWritten + ", " + keys + "}");
  return load_model_spec(folder.path() + "/M", kModels);
}

std::string error_with(const std::string& keys) {
  std::string message = error_of([&] { spec_of(keys); });
  const std::size_t at = message.find("/M/config.json");
  return at == std::string::npos ? message : message.substr(at + 3);
}

TEST(ModelConfigs, WeightsAndKvAreThePublishedOnes) {
  for (const PublishedModel& model : kPublished) {
    SCOPED_TRACE(model.name);
    ASSERT_NO_THROW(spec_of(model.keys)) << error_with(model.keys);
    const ModelSpec m = spec_of(model.keys);
    EXPECT_EQ(total_parameters(m), model.parameters);
    EXPECT_EQ(kv_bytes_per_token(m), model.kv_bytes);
    EXPECT_EQ(weight_bytes(m), 2 * total_parameters(m));
  }
}

// Publishers round: 2 % of the total, and of the active parameters, which some count without embeddings, 12 %.
TEST(ModelConfigs, RecentFamiliesHaveTheirPublishedSize) {
  for (const Recent& model : recent_models()) {
    SCOPED_TRACE(model.name);
    ASSERT_NO_THROW(spec_of(model.keys)) << error_with(model.keys);
    const ModelSpec m = spec_of(model.keys);
    EXPECT_NEAR(static_cast<double>(total_parameters(m)) * 1e-9, model.total, 0.02 * model.total);
    if (model.active > 0) {
      EXPECT_NEAR(static_cast<double>(active_parameters(m)) * 1e-9, model.active, 0.12 * model.active);
    }
    EXPECT_EQ(kv_bytes_per_token(m), model.kv_bytes);
  }
}

TEST(ModelConfigs, EveryFamilyHasAPublishedConfig) {
  // Without a published count that could be checked here; sums over the layers of their configs.
  std::string all = "\"muse_glimmer_text\" \"nemotron-nas\" \"glm5_next_text\" \"lfm2_moe\" \"hy_v3\"";
  for (const Recent& model : recent_models()) all += model.keys;
  for (const PublishedModel& model : kPublished) all += model.keys;
  for (const std::string& family : family_names())
    EXPECT_TRUE(all.find("\"" + family + "\"") != std::string::npos || all.find("\"" + family + "_text\"") != std::string::npos) << family;
}

// Llama-3.1-8B has 6.9793 B weights in layers' matrices, and 1.0510 B that keep 16 bits; with `scale` bits of scales per weight.
constexpr double kInLayers = 32.0 * (2 * 4096 * (32 + 8) * 128 + 3 * 4096 * 14336), kOutside = 8'030'261'248 - kInLayers;
double bytes_at(double bits) { return kInLayers * bits / 8 + kOutside * 2; }

const std::string kLlama8b =
    R"("model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
       "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "quantization_config": )";

struct Quantized {
  const char* config;
  double bits;
  Dtype compute;
  std::int64_t kv_bytes = 131'072;
};

// The spellings that quantizers write. Bits: of the weight, and of scales over the weights that share one.
const Quantized kQuantized[] = {
    {R"({"quant_method": "fp8", "activation_scheme": "dynamic"})", 8, Dtype::kFp8},
    {R"({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]})", 8 + 32.0 / 16384,
     Dtype::kFp8},
    {R"({"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": true, "sym": true, "damp_percent": 0.1, "true_sequential": true})",
     8.125, Dtype::kBf16},
    {R"({"quant_method": "gptq", "bits": 4, "dataset": "c4", "lm_head": false, "dynamic": {}})", 4.125, Dtype::kBf16},
    {R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true, "modules_to_not_convert": null})",
     4 + 20.0 / 128, Dtype::kBf16},
    {R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "_load_in_4bit": true, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": true,
         "llm_int8_skip_modules": ["lm_head"], "llm_int8_threshold": 6.0})",
     4 + 8.0 / 64 + 32.0 / 16384, Dtype::kBf16},
    {R"({"quant_method": "bitsandbytes", "load_in_8bit": true})", 8, Dtype::kBf16},
    {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"], "kv_cache_scheme": null, "config_groups": {"group_0":
         {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": true},
          "input_activations": null, "output_activations": null}}})",
     4.125, Dtype::kBf16},
    {R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits":
         8, "type": "float", "strategy": "channel"}, "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true}}}})",
     8, Dtype::kFp8},
    {R"({"quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "frozen", "config_groups": {"group_0": {"targets":
         ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "observer": "mse", "observer_kwargs": {}}, "input_activations":
         {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": true}}}})",
     8, Dtype::kInt8},
    {R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights":
         {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "input_activations": {"num_bits": 4, "type": "float",
         "group_size": 16}}}, "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": false}})",
     4.5, Dtype::kFp4, 65'536},
    {R"({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})", 8, Dtype::kFp8, 65'536},
    {R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "producer": {"name": "modelopt"}})", 4.5, Dtype::kFp4},
    {R"({"quant_method": "mxfp4"})", 4.25, Dtype::kBf16},
    {R"({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}, "skip_modules": ["lm_head"]})",
     4.5, Dtype::kBf16},
    {R"({"quant_method": "torchao", "quant_type": "int4_weight_only"})", 4.25, Dtype::kBf16},
    {R"({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}})", 8, Dtype::kBf16},
    {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}})", 8, Dtype::kBf16},
    {R"({"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
         "input_tensors": {"dtype": "fp8_e4m3"}}})",
     8, Dtype::kFp8},
    {R"({"quant_method": "aqlm", "nbits_per_codebook": 16})", 2, Dtype::kBf16},
    // Left out: attention, 1/5.2 of the weights, by a pattern, by stars and by names.
    {R"({"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]})", 8 + 8 * 41'943'040.0 / 218'103'808, Dtype::kFp8},
    {R"({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})",
     4.25 + 11.75 * 41'943'040.0 / 218'103'808, Dtype::kBf16},
    {R"({"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*", "model.vision_tower.layers.0.mlp"], "config_groups": {"group_0": {
         "targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8, "type": "float"}}}})",
     8 + 8 * 41'943'040.0 / 218'103'808, Dtype::kFp8},
    {R"({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["model.layers.0", "model.layers.1.mlp.up_proj", "mlp.gate", "lm_head"]})",
     8 + 8 * (218'103'808.0 + 58'720'256) / 32 / 218'103'808, Dtype::kFp8},
};

TEST(ModelConfigs, QuantizedWeightsHaveTheBitsOfTheirScheme) {
  for (const Quantized& scheme : kQuantized) {
    SCOPED_TRACE(scheme.config);
    ASSERT_NO_THROW(spec_of(kLlama8b + scheme.config)) << error_with(kLlama8b + scheme.config);
    const ModelSpec m = spec_of(kLlama8b + scheme.config);
    EXPECT_NEAR(static_cast<double>(weight_bytes(m)), bytes_at(scheme.bits), 64);
    EXPECT_EQ(compute_dtype(m), scheme.compute);
    EXPECT_EQ(kv_bytes_per_token(m), scheme.kv_bytes);
    EXPECT_EQ(total_parameters(m), 8'030'261'248);
  }
  // llm-compressor #1215 measured the weights of W4A16 on a GPU.
  EXPECT_NEAR(bytes_at(4.125), 5'700'595'200, 1e6);
}

// gpt-oss keeps all but its experts in 16 bits: 13.72 GiB loaded by vLLM, in which padding is included; the model card says 12.8 GiB.
TEST(ModelConfigs, OnlyTheExpertsOfGptOssAreQuantized) {
  const ModelSpec m =
      spec_of(R"("model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32, "quantization_config": {"quant_method": "mxfp4",
      "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})");
  EXPECT_NEAR(static_cast<double>(weight_bytes(m)), 12.8 * (1 << 30), 0.02 * (1 << 30));
  EXPECT_EQ(std::tuple(m.attention_weights.bits, m.expert_weights.bits), std::tuple(16, 4.25));
}

TEST(ModelConfigs, LayersOfTwoKindsAreCountedEach) {
  // transformers on the meta device: 400.71 B; 24 of 48 layers have experts.
  const std::string maverick =
      R"("model_type": "llama4", "text_config": {"model_type": "llama4_text", "num_local_experts": 128, "torch_dtype": "bfloat16",
      "interleave_moe_layer_step": 2}, "vision_config": {"hidden_size": 1408}, "boi_token_index": 200080)";
  const ModelSpec m = spec_of(maverick);
  EXPECT_EQ(m.num_expert_layers(), 24);
  EXPECT_NEAR(static_cast<double>(total_parameters(m)), 400.71e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(weight_bytes(m)), 801.4e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(weight_bytes(m, 8, 2, 1)), static_cast<double>(weight_bytes(m, 8)) / 2, 1e9);
  const ModelSpec step = spec_of(R"("model_type": "qwen3_moe", "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3])");
  EXPECT_EQ(step.expert_layers, (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(step.intermediate, 6144);
  EXPECT_TRUE(spec_of(R"("model_type": "qwen3_moe", "num_experts": 0)").expert_layers.empty());
}

StepCost prompt_of(const TempFolder& folder, const std::string& keys, const std::string& card, std::int32_t tokens) {
  const std::string model = folder.write("config.json", "{" + kWritten + ", " + keys + "}");
  const CostSetup setup = setup_of("model: " + model + "\nhardware: " + card + "\n");
  return prompt_cost(*make_cost_model(setup), {tokens, 0}, 1);
}

// Weights alone are widened and multiplied in 16 bits; quantized activations use the units that the card has.
TEST(ModelConfigs, OnlyQuantizedActivationsComputeFaster) {
  const TempFolder folder;
  const auto prompt = [&](const std::string& scheme, const std::string& card) {
    return prompt_of(folder, kLlama8b + scheme, card, 8000).total;
  };
  const std::string gptq8 = R"({"quant_method": "gptq", "bits": 8})", gptq4 = R"({"quant_method": "gptq", "bits": 4})",
                    fp8 = R"({"quant_method": "fp8"})", nvfp4 = R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})";
  for (const char* card : {"h100", "a100-80gb"}) {
    const Picoseconds plain = prompt("null", card);
    EXPECT_EQ(prompt(gptq8, card), plain) << card;
    EXPECT_EQ(prompt(gptq4, card), plain) << card;
    EXPECT_EQ(prompt(nvfp4, card), plain) << card << " has no fp4 units";
    const double ratio = prompt(fp8, card).real() / plain.real();
    if (std::string(card) == "h100") {
      EXPECT_LT(ratio, 0.9);  // products in fp8 reach a smaller share of their peak
    } else {
      EXPECT_EQ(ratio, 1);
    }
  }
  EXPECT_LT(prompt(nvfp4, "rtxpro6000"), prompt(fp8, "rtxpro6000"));
}

// 4 layers, of which the first is dense: FLOPs are those of each layer's matrices and of attention, summed.
TEST(ModelConfigs, FlopsOfLayersOfTwoKindsAddUp) {
  const TempFolder folder;
  const StepCost cost = prompt_of(folder, R"("model_type": "glm4_moe", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
      "num_key_value_heads": 8, "intermediate_size": 2048, "moe_intermediate_size": 256, "n_routed_experts": 16, "num_experts_per_tok": 2, "vocab_size": 1024)",
                                  "h100", 1);
  const std::int64_t attention = 4 * 512 * 512, dense = 3 * 512 * 2048, routed = 512 * 16 + 3 * 512 * 256 * (2 + 1), head = 512 * 1024;
  const auto matrices = static_cast<double>(2 * (4 * attention + dense + 3 * routed + head));
  EXPECT_GT(static_cast<double>(cost.flops), matrices);
  EXPECT_LT(static_cast<double>(cost.flops), 1.02 * matrices);  // norms, RoPE, attention of one token
}

TEST(ModelConfigs, TextConfigTakesWhatItLacksFromOutsideAndFromItsFamily) {
  const ModelSpec gemma =
      spec_of(R"("model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
      "num_hidden_layers": 34, "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}, "vision_config": {"hidden_size": 1152}, "mm_tokens_per_image": 256, "kv_cache_dtype": "fp8")");
  EXPECT_EQ(std::tuple(gemma.q_heads, gemma.kv_heads, gemma.head_dim, gemma.vocabulary), std::tuple(8, 4, 256, 262'208));
  EXPECT_EQ(gemma.hidden, 2560) << "not the vision tower's";
  EXPECT_EQ(std::tuple(gemma.kv_dtype, gemma.max_tokens), std::tuple(Dtype::kFp8, 131'072));
  EXPECT_EQ(total_parameters(gemma), 3'880'263'168);  // of gemma-3-4b's text part, with 262,208 tokens
  EXPECT_EQ(gemma.some_window, 1024);
  EXPECT_EQ(std::count(gemma.attention_kinds.begin(), gemma.attention_kinds.end(), AttentionKind::kWindow), 29);
  EXPECT_THAT(gemma.remarks, ::testing::Contains(HasSubstr("the text model alone")));
  const ModelSpec outside =
      spec_of(R"("model_type": "llama4", "text_config": {"model_type": "llama4_text"}, "vision_config": {}, "quantization_config":
      {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["re:.*lm_head", "re:.*self_attn", "re:.*vision_model.*"],
       "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 128}}}})");
  EXPECT_EQ(outside.expert_weights.bits, 4.125);
  EXPECT_EQ(outside.mlp_weights.bits, 4.125) << "the shared expert";
  EXPECT_EQ(outside.attention_weights.bits, 16);
  const ModelSpec llava =
      spec_of(R"("model_type": "llava", "text_config": {"max_position_embeddings": 4096, "vocab_size": 32064}, "vision_config": {})");
  EXPECT_EQ(std::tuple(llava.layers, llava.hidden), std::tuple(32, 4096));
  EXPECT_EQ(total_parameters(llava), 6'738'939'904);
  EXPECT_EQ(spec_of(R"("model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280}, "hidden_size": 3584, "intermediate_size": 18944,
      "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "image_token_id": 5, "rope_scaling": {"type": "mrope",
      "mrope_section": [16, 24, 24]})")
                .hidden,
            3584);
}

// Case by case: keys, and what the message has.
TEST(ModelConfigs, WhatIsNotPricedIsRefusedByName) {
  const std::pair<std::string, std::string> refused[] = {
      {R"("model_type": "llama", "num_experts_in_disguise": 8)", "'num_experts_in_disguise' = 8 is not understood for llama"},
      {R"("model_type": "llama", "sliding_window": 4096)", "'sliding_window' = 4096 is not understood for llama"},
      {R"("model_type": "mixtral", "shared_expert_intermediate_size": 4096)", "'shared_expert_intermediate_size' = 4096 is not understood"},
      {R"("model_type": "llama", "cross_attention_layers": [3, 8])", "'cross_attention_layers' = [3, 8] is not understood"},
      {R"("model_type": "qwen3", "layer_types": ["linear_attention", "full_attention"])",
       "'layer_types' has 'linear_attention', which is not priced for qwen3; priced: chunked_attention, full_attention, sliding_attention"},
      {R"("model_type": "qwen3_next", "layer_types": ["mamba", "full_attention"])", "'layer_types' has 'mamba', which is not priced"},
      {R"("model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"])",
       "expected one type of attention for each of 48 layers"},
      {R"("model_type": "minimax_text_01", "attn_type_list": [0, 2, 1])",
       "'attn_type_list' has layers of type 2, which is not priced for minimax_text_01"},
      {R"("model_type": "minimax_m2", "attn_type_list": [0, 1])",
       "'attn_type_list' has layers of type 0, which is not priced for minimax_m2"},
      {R"("model_type": "minimax_m2", "qk_norm_type": "per_head")", "'qk_norm_type' = per_head is not priced for minimax_m2"},
      {R"("model_type": "llama", "kv_lora_rank": 512)", "'kv_lora_rank' = 512 is not understood for llama"},
      {R"("model_type": "deepseek_v3", "index_topk": 2048)", "'index_topk' = 2048 is not understood for deepseek_v3"},
      {R"("model_type": "deepseek_v41_text")", "model_type 'deepseek_v41_text' is not priced: its layers that share caches"},
      {R"("model_type": "nemotron_h", "num_hidden_layers": 2, "hybrid_override_pattern": "MX")", "has a letter that is none of M, *, -, E"},
      {R"("model_type": "nemotron_h", "num_hidden_layers": 3, "hybrid_override_pattern": "M*")", "has 2 layers, num_hidden_layers is 3"},
      {R"("model_type": "deepseek_v4", "compress_ratios": [4, 128])", "an entry for each of 43 layers"},
      {R"("model_type": "glm_moe_dsa", "index_new": 3)", "'index_new' = 3 is not understood for glm_moe_dsa"},
      {R"("model_type": "mamba2")", "model_type 'mamba2' is not priced: its linear-attention or state-space layers"},
      {R"("model_type": "bert")", "model_type 'bert' is not priced: an encoder has no KV cache"},
      {R"("model_type": "t5")", "model_type 't5' is not priced: encoder-decoder models are not priced"},
      {R"("model_type": "llama", "is_encoder_decoder": true)", "'is_encoder_decoder' = true is not priced"},
      {R"("model_type": "llama", "architectures": ["LlamaForSequenceClassification"])",
       "LlamaForSequenceClassification, which generates no text"},
      {R"("model_type": "qwen")", "model_type 'qwen' is not priced; priced: apertus, arcee, bailing_moe_v2, cohere"},
      {R"("model_type": "opt", "do_layer_norm_before": false)", "'do_layer_norm_before' = false is not priced for opt; only true is"},
      {R"("model_type": "clip", "text_config": {"hidden_size": 8})", "text_config needs 'model_type'"},
      {kLlama8b + R"({"quant_method": "squeezellm"})", "quantization_config: 'quant_method' = squeezellm is not priced; known: aqlm"},
      {kLlama8b + R"({"quant_method": "fp8", "weight_rank": 4})", "'weight_rank' of quantization_config is not understood"},
      {kLlama8b + R"({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*": {}}})", "'dynamic' of quantization_config"},
      {kLlama8b + R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})",
       "'quant_algo' = MIXED_PRECISION needs 'quantized_layers' or 'config_groups'"},
      {kLlama8b + R"({"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {}})",
       "'format' = marlin-24 of quantization_config"},
      {kLlama8b + R"({"bits": 4})", "quantization_config has no 'quant_method'"}};
  for (const auto& [keys, message] : refused) {
    const std::string error = error_with(keys);
    EXPECT_THAT(error, HasSubstr(message)) << keys;
    EXPECT_THAT(error, ::testing::StartsWith("config.json:")) << keys;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(ModelConfigs, KeysThatAreSwitchedOffDoNotMatter) {
  EXPECT_EQ(total_parameters(
                spec_of(R"("model_type": "llama", "sliding_window": null, "num_experts": 0, "moe_layers": [], "some_new_switch": false,
      "mlp_only_layers": [], "use_qk_norm": false, "quantization_config": null, "layer_types": null)")),
            6'738'415'616);
}

// ModelOpt and AutoGPTQ may write the scheme into a file next to config.json.
TEST(ModelConfigs, ASchemeInAFileOfItsOwnCounts) {
  const TempFolder folder;
  folder.write("M/config.json", R"({"model_type": "llama"})");
  folder.write("M/hf_quant_config.json",
               R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})");
  const ModelSpec m = load_model_spec(folder.path() + "/M", kModels);
  EXPECT_EQ(std::tuple(m.mlp_weights.bits, m.kv_dtype), std::tuple(8, Dtype::kFp8));
  folder.write("N/config.json", R"({"model_type": "llama"})");
  const std::string file = folder.write("N/quantize_config.json", R"({"bits": 4, "group_size": 128, "odd": 3})");
  EXPECT_THAT(error_of([&] { load_model_spec(folder.path() + "/N", kModels); }), ::testing::StartsWith(file + ":1:"));
}

// Modules by their scheme: FP8 in attention, NVFP4 in the MLP's up_proj, the rest as it is.
TEST(ModelConfigs, LayersMayHaveSchemesOfTheirOwn) {
  std::string modules;
  for (int layer = 0; layer < 32; ++layer) {
    const std::string at = "\"model.layers." + std::to_string(layer) + ".";
    modules += (layer > 0 ? ", " : "") + at + "self_attn\": {\"quant_algo\": \"FP8\"}, " + at +
               "mlp.up_proj\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16}";
  }
  const ModelSpec m =
      spec_of(kLlama8b + R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {)" + modules + "}}");
  EXPECT_DOUBLE_EQ(m.attention_weights.bits, 8);
  EXPECT_DOUBLE_EQ(m.mlp_weights.bits, (4.5 + 2 * 16) / 3);
}

TEST(ModelConfigs, ModelOptMayListGroupsAndNoMethod) {
  const ModelSpec m =
      spec_of(kLlama8b + R"({"quant_algo": "FP8", "kv_cache_scheme": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"},
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}})");
  EXPECT_EQ(m.quantization, "modelopt");
  EXPECT_DOUBLE_EQ(m.attention_weights.bits, 8);
  EXPECT_EQ(kv_bytes_per_token(m), 65'536);
}

TEST(ModelConfigs, KeysThatChangeNothingArePassedOver) {
  const std::string moe = R"("model_type": "qwen3_moe", "num_hidden_layers": 2, "head_dim": 128)";
  EXPECT_EQ(total_parameters(spec_of(moe + R"(, "use_qk_norm": true)")), total_parameters(spec_of(moe)));
  EXPECT_NO_THROW(spec_of(
      R"("model_type": "kimi_k25", "use_unified_vision_chunk": true, "video_placeholder": "v", "text_config": {"model_type": "kimi_k2"})"));
}

TEST(ModelConfigs, DtypeGoesBeforeTorchDtype) {
  const ModelSpec m = spec_of(R"("model_type": "llama", "dtype": "float32")");
  EXPECT_EQ(m.dtype, Dtype::kFp32);
  EXPECT_THAT(m.remarks, ::testing::Contains(HasSubstr("'dtype' = float32 is taken")));
}

// Llama-3.1-8B by name of the format; each as the checkpoint's quantization_config has it.
TEST(ModelConfigs, AFormatMayBeNamed) {
  const TempFolder folder;
  folder.write("M/config.json", "{" + kWritten + ", " + kLlama8b.substr(0, kLlama8b.rfind(",")) + "}");
  const auto named = [&](const std::string& scheme) { return load_model_spec(folder.path() + "/M", kModels, scheme); };
  for (const auto& [scheme, bits, compute] : {std::tuple{"none", 16.0, Dtype::kBf16},
                                              {"fp8", 8.0, Dtype::kFp8},
                                              {"awq", 4 + 20.0 / 128, Dtype::kBf16},
                                              {"gptq", 4.125, Dtype::kBf16},
                                              {"w8a8", 8.0, Dtype::kInt8},
                                              {"int8", 8.0, Dtype::kInt8},
                                              {"nvfp4", 4.5, Dtype::kFp4},
                                              {"mxfp4", 4.25, Dtype::kBf16},
                                              {"bnb4", 4.5, Dtype::kBf16}}) {
    SCOPED_TRACE(scheme);
    EXPECT_NEAR(static_cast<double>(weight_bytes(named(scheme))), bytes_at(bits), 64);
    EXPECT_EQ(compute_dtype(named(scheme)), compute);
  }
  EXPECT_THAT(error_of([&] { named("fp7"); }), HasSubstr("unknown format 'fp7'"));
  folder.write("Q/config.json", "{" + kWritten + ", " + kLlama8b + R"({"quant_method": "awq", "bits": 4}})");
  EXPECT_NO_THROW(load_model_spec(folder.path() + "/Q", kModels, "awq"));
  EXPECT_THAT(error_of([&] { load_model_spec(folder.path() + "/Q", kModels, "fp8"); }), HasSubstr("quantized already, by awq"));
}

TEST(ModelConfigs, AnIdMayNameItsFormat) {
  const auto bytes = [](const std::string& id) { return static_cast<double>(weight_bytes(load_model_spec(id, kModels))); };
  EXPECT_NEAR(bytes("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"), bytes_at(8), 64);
  EXPECT_NEAR(bytes("nvidia/Llama-3.1-8B-Instruct-NVFP4"), bytes_at(4.5), 64);
  EXPECT_NEAR(bytes("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16"), bytes_at(4.125), 64);
  EXPECT_NEAR(bytes("someone/Llama-3.1-8B-Instruct-AWQ-INT4"), bytes_at(4 + 20.0 / 128), 64);
  EXPECT_THAT(error_of([&] { load_model_spec("nvidia/Llama-3.1-8B-Instruct-FP8", kModels, "awq"); }),
              HasSubstr("has weights in fp8 already"));
}

TEST(ModelConfigs, AConfigOfTheWorkingFolder) {
  const TempFolder folder;
  folder.write("M/config.json", "{" + kWritten + R"(, "model_type": "llama"})");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path() + "/M");
  const ModelSpec m = load_model_spec("config.json", kModels);
  std::filesystem::current_path(before);
  EXPECT_EQ(m.name, "M");
}

TEST(ModelConfigs, AnUnknownIdNamesModelsThatAreNear) {
  EXPECT_THAT(error_of([] { load_model_spec("org/Llama-3.1-9B-Instruct", kModels); }), HasSubstr("llama-3.1-8b"));
}

TEST(ModelConfigs, AModelThatDoesNotFitSaysOnWhat) {
  const auto error_with = [](const char* model) {
    const CostSetup setup = setup_of(std::string("hardware: h100\nmodel: ") + model + "\n");
    return error_of([&] { derive_num_blocks(setup, 0.9, std::int64_t{1} << 30, 16); });
  };
  EXPECT_THAT(error_with("llama-3.1-70b"), HasSubstr("raise parallel.tp (tp: 2, or 1 x b200 fits)"));
  EXPECT_THAT(error_with("llama-3.1-405b"), HasSubstr("raise parallel.tp (tp: 16, or 8 x h200 fits)"));
}

TEST(ModelConfigs, AFamilyIsOneFile) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.file("families"));
  folder.write("families/tiny_llama.yaml", "defaults: {hidden_size: 8, num_hidden_layers: 3}\nkeys: [width_of_all]\nqk_norm: wide\n");
  folder.write("families/wrong.yaml", "keys: []\nnorm: 3\n");
  const std::string before = profiles_folder();
  ::setenv("KVLAB_PROFILES", folder.path().c_str(), 1);
  const Family* tiny = find_family("tiny_llama");
  ASSERT_NE(tiny, nullptr);
  EXPECT_EQ(tiny->sizes.layers, 3);
  EXPECT_EQ(tiny->qk_norm, QkNorm::kWide);
  EXPECT_EQ(tiny->keys, std::vector<std::string>{"width_of_all"});
  EXPECT_NE(find_family("llama"), nullptr) << "shipped";
  EXPECT_EQ(find_family("../models/llama-3.1-8b"), nullptr);
  EXPECT_THAT(error_of([] { static_cast<void>(find_family("wrong")); }), HasSubstr("wrong.yaml:2:1: unknown key 'norm' in family 'wrong'"));
  ::setenv("KVLAB_PROFILES", before.c_str(), 1);
}

}  // namespace
}  // namespace kvlab
