#include "sim/cost/model_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "base/text.h"
#include "base/usage.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 40;

FamilySizes read_sizes(Params p) {
  const auto size = [&](const char* key) { return p.optional<std::int64_t>(key, 0, 1, kMost, "if config.json is silent"); };
  FamilySizes s;
  s.vocabulary = size("vocab_size");
  s.hidden = size("hidden_size");
  s.intermediate = size("intermediate_size");
  s.layers = size("num_hidden_layers");
  s.q_heads = size("num_attention_heads");
  s.kv_heads = size("num_key_value_heads");
  s.head_dim = size("head_dim");
  s.positions = size("max_position_embeddings");
  p.reject_unread();
  return s;
}

FamilyExperts read_experts(Params p) {
  const auto number = [&](const char* key, const char* meaning) { return p.optional<std::int64_t>(key, 0, 0, kMost, meaning); };
  FamilyExperts e;
  e.layers = p.choice("layers",
                      {{"none", ExpertLayers::kNone},
                       {"all", ExpertLayers::kAll},
                       {"sparse_step", ExpertLayers::kSparseStep},
                       {"first_dense", ExpertLayers::kFirstDense},
                       {"interleaved", ExpertLayers::kInterleaved}},
                      ExpertLayers::kNone, "which layers have experts, as config.json says");
  e.experts = number("number", "routed experts of a layer");
  e.per_token = number("per_token", "experts of a token");
  e.width = number("width", "of one expert; 0: intermediate_size");
  e.shared_width = number("shared_width", "shared_expert_intermediate_size");
  e.shared_experts = number("shared", "n_shared_experts");
  e.first_dense = number("first_dense", "layers before the first with experts");
  e.shared_gate = p.flag("shared_gate", false, "the shared expert has a gate");
  e.has_bias = p.flag("has_bias", false, "experts and router have biases");
  p.reject_unread();
  return e;
}

std::vector<std::pair<std::string, std::string>> read_only(Params p) {
  std::vector<std::pair<std::string, std::string>> only;
  for (const std::string& key : p.keys()) only.emplace_back(key, p.text(key, "the one value that is priced"));
  return only;
}

FamilyReader reader_of(Params& p) {
  std::vector<std::string> names{"none"};
  std::vector<FamilyReader> readers{nullptr};
  for (const std::vector<NamedReader>& some : {hybrid_readers(), varied_readers()})
    for (const NamedReader& one : some) {
      names.emplace_back(one.name);
      readers.push_back(one.read);
    }
  return readers[p.choice("reader", names, 0, "code that reads keys of its own")];
}

// The keys of latent attention belong to each family that has it.
std::vector<std::string> read_keys(Params& p, FamilyAttention attention) {
  std::vector<std::string> keys = p.words("keys", "keys of config.json that change a cost");
  if (attention == FamilyAttention::kLatent)
    for (const char* key : {"attention_bias", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
      keys.emplace_back(key);
  return keys;
}

void read_flags(Params& p, Family& f) {
  f.attention_gate = p.flag("attention_gate", f.attention_gate, "a gate of the attention's output");
  f.router_bias = p.flag("router_bias", f.router_bias, "a bias per expert");
  f.gated_mlp = p.flag("gated_mlp", f.gated_mlp, "the MLP has a gate");
  f.tied_embeddings = p.flag("tied_embeddings", f.tied_embeddings, "the head is the embedding");
  f.qkv_bias = p.flag("qkv_bias", f.qkv_bias, "biases of queries, keys and values");
  f.o_bias = p.flag("o_bias", f.o_bias, "a bias of the output projection");
  f.mlp_bias = p.flag("mlp_bias", f.mlp_bias, "biases of the MLP");
  f.bias_reaches_o = p.flag("bias_reaches_o", f.bias_reaches_o, "attention_bias is of the output projection too");
  f.norm_bias = p.flag("norm_bias", f.norm_bias, "norms have biases");
  f.learned_positions = p.flag("learned_positions", f.learned_positions, "a table of positions");
  f.norm_has_weights = p.flag("norm_has_weights", f.norm_has_weights, "norms have weights");
  f.has_sinks = p.flag("has_sinks", f.has_sinks, "a sink per head");
}

Family read_family(const std::string& name, Params& p) {
  Family f;
  f.name = name;
  f.sizes = read_sizes(p.optional_child("defaults", "defaults"));
  f.experts = read_experts(p.optional_child("experts", "experts"));
  f.attention =
      p.choice("attention",
               {{"heads", FamilyAttention::kHeads},
                {"latent", FamilyAttention::kLatent},
                {"gated_delta", FamilyAttention::kGatedDelta},
                {"lightning", FamilyAttention::kLightning}},
               FamilyAttention::kHeads, "K and V per head, a latent vector, or linear attention in layers that config.json lists");
  read_flags(p, f);
  f.norms = p.optional<std::int64_t>("norms", f.norms, 0, 64, "per layer, of hidden width");
  f.qk_norm = p.choice(
      "qk_norm",
      {{"none", QkNorm::kNone}, {"per_head", QkNorm::kPerHead}, {"wide", QkNorm::kWide}, {"without_weights", QkNorm::kWithoutWeights}},
      QkNorm::kNone, "norm of queries and keys");
  f.layer_extras = p.optional<std::int64_t>("layer_extras", 0, 0, kMost, "parameters of a layer beyond those of its parts");
  f.keys = read_keys(p, f.attention);
  f.only = read_only(p.optional_child("only", "only"));
  f.layer_types = p.words("layer_types", "of config.json, with those of the attention");
  f.own = reader_of(p);
  p.reject_unread();
  return f;
}

Params model_types() { return {shared_config(shipped_profiles("model_types.yaml")), std::make_shared<Choices>(), "model types"}; }

// The value of model_type in a mapping of names; "": none.
std::string renamed(const char* mapping, const std::string& model_type) {
  Params types = model_types();
  Params names = types.optional_child(mapping, mapping);
  return names.has(model_type) ? names.text(model_type, "name") : "";
}

// The file of a family; "": none.
std::string file_of(const std::string& model_type) {
  if (model_type.empty() || model_type.find_first_of("/\\.") != std::string::npos) return "";
  std::string file = shipped_profiles("families/" + model_type + ".yaml");
  return is_file(file) ? file : "";
}

constexpr std::string_view kKeysOfAll =
    "model_type architectures num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim vocab_size "
    "intermediate_size layer_types max_position_embeddings rope_scaling rope_parameters torch_dtype dtype kv_cache_dtype "
    "tie_word_embeddings quantization_config attn_type_list";

constexpr std::string_view kKeysOfExperts =
    "num_local_experts num_experts n_routed_experts num_experts_per_tok num_experts_per_token moe_intermediate_size";
// By ExpertLayers.
constexpr std::string_view kKeysOfLayers[] = {"", "", "decoder_sparse_step mlp_only_layers",
                                              "first_k_dense_replace moe_layer_freq n_shared_experts num_shared_experts mlp_layer_types",
                                              "moe_layers interleave_moe_layer_step"};

bool is_key_of(ExpertLayers layers, std::string_view key) {
  return layers != ExpertLayers::kNone && (has_word(kKeysOfExperts, key) || has_word(kKeysOfLayers[static_cast<std::size_t>(layers)], key));
}

// Keys on training, generation, numerics, tokens, files and libraries.
constexpr std::string_view kHarmlessModelKeys =
    // RoPE and positions: a constant per channel
    "rope_theta rope_local_base_freq rope_interleaved rope_interleave rope_type rotary_pct rotary_emb_base rotary_dim rotary_base "
    "rotary_percent partial_rotary_factor no_rope_layer no_rope_layers no_rope_layer_interval rope_traditional "
    "original_max_position_embeddings initial_context_length use_mrope mrope_section position_embedding_type rope_ratio "
    "original_rope use_dynamic_ntk use_logn_attn seq_length max_sequence_length max_seq_len model_max_length n_ctx max_length "
    "min_length n_positions long_factor short_factor rope_percentage position_encoding_2d use_rope "
    // numerics
    "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps layernorm_epsilon hidden_act hidden_activation "
    "activation_function activation attention_softmax_in_fp32 scale_attention_softmax_in_fp32 scale_attn_weights "
    "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn clip_qkv attention_softcap attn_logit_softcapping "
    "final_logit_softcapping logit_softcapping query_pre_attn_scalar attn_temperature_tuning floor_scale postnorm shared_moe_mode "
    "qk_head_dim attn_scale attention_scale attention_multiplier embedding_multiplier residual_multiplier logits_scaling "
    "logit_scale scale_emb scale_depth dim_model_base swiglu_limit router_scaling_factor routed_scaling_factor norm_topk_prob "
    "scoring_func score_function topk_method n_group topk_group num_expert_group route_scale norm_type layer_norm_type "
    "use_parallel_residual parallel_attn residual_in_fp32 fp32_residual_connection softmax_scale mup_multiplier "
    "attention_logit_cap use_scaled_rope rms_norm normalization_type use_flash_attn use_flash_attention "
    // training
    "initializer_range initializer_factor init_std init_device pretraining_tp gradient_checkpointing tensor_parallel_degree "
    "output_router_logits router_aux_loss_coef aux_loss_alpha aux_loss_coef seq_aux router_jitter_noise input_jitter_noise "
    "router_z_loss_coef attention_probs_dropout_prob hidden_dropout_prob layer_switch order_of_interleaved_layers "
    "use_parallel_embedding interpolate_factor moe_aux_loss_coeff layerdrop ep_size label_smoothing dropout dropout_rate "
    "embd_pdrop resid_pdrop attn_pdrop summary_first_dropout summary_type summary_use_proj summary_activation "
    "summary_proj_to_labels problem_type finetuning_task task_specific_params num_labels id2label label2id use_bfloat16 "
    "tf_legacy_loss torchscript embedding_dropout classifier_dropout sep_token_id load_balancing_loss_weight "
    "router_bias_update_speed expert_dropout use_unpad num_nextn_predict_layers num_mtp_modules use_mtp mtp_transformer_layers "
    "mtp_loss_scaling_factor mtp_num_hidden_layers mtp_use_dedicated_embeddings ignore_index loss_type vocab_size_multiple_of "
    // generation, tokens, files
    "use_cache bos_token_id eos_token_id pad_token_id eod_token_id sep_id cls_token_id mask_token_id prefix decoder_start_token_id "
    "forced_bos_token_id forced_eos_token_id bad_words_ids suppress_tokens begin_suppress_tokens tokenizer_padding_side "
    "tokenizer_model_max_length padding_side pad_token bos_token eos_token unk_token max_new_tokens flash_attention training_args "
    "dataset tokenizer_class temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size num_beams "
    "num_beam_groups diversity_penalty do_sample early_stopping num_return_sequences exponential_decay_length_penalty "
    "encoder_no_repeat_ngram_size remove_invalid_values return_dict return_dict_in_generate output_attentions output_hidden_states "
    "output_scores output_past chunk_size_feed_forward cross_attention_hidden_size is_decoder tie_encoder_decoder name_or_path "
    "transformers_version transformers.js_config auto_map attn_implementation cache_implementation license use_return_dict "
    "custom_pipelines library_name model_name language base_model tags version chat_template generation_config adapters "
    "experts_per_token for_fusion mm_vision_tower hidden_act_param rope_scaling_type bias_dropout_fusion masked_softmax_fusion "
    "slow_but_exact apply_residual_connection_post_layernorm torch_compile fused_attn use_fused_qkv neftune_noise_alpha "
    "unsloth_fixed unsloth_version onnx _name use_cache_quantization head_dim_original output_gate_type use_gemma_norm "
    "swiglu_alpha scale_fmt indexer_rope_interleave index_share_for_mtp_iteration moe_router_dtype activation_situ_beta "
    "activation_situ_linear_beta moe_renormalize moe_router_activation_func use_grouped_topk compress_rope_theta hc_sinkhorn_iters "
    "mhc num_logits_to_keep rescale_prenorm_residual time_step_floor time_step_limit time_step_max time_step_min mamba_hidden_act "
    "mlp_hidden_act use_mamba_kernels moe_shared_expert_overlap mtp_hybrid_override_pattern mtp_layers_block_type swa_rope_theta "
    "attention_value_scale moe_router_scaling_factor gate_lower_bound layer_rope_theta output_multiplier qk_scale_factor "
    "pruned_heads is_composition sub_configs model_parallel world_size";

bool has_one(std::string_view key, std::initializer_list<std::string_view> prefixes, std::initializer_list<std::string_view> suffixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view p) { return key.starts_with(p); }) ||
         std::any_of(suffixes.begin(), suffixes.end(), [&](std::string_view s) { return key.ends_with(s); });
}

}  // namespace

const Family& generic_family() {
  static const Family generic = [] {
    Params types = model_types();
    Params p = types.child("without_model_type", "without_model_type");
    return read_family("", p);
  }();
  return generic;
}

const Family* find_family(const std::string& model_type) {
  static std::mutex mutex;
  static std::map<std::string, Family> read;  // by file
  std::string name = model_type, file = file_of(name);
  if (file.empty()) file = file_of(name = renamed("same", model_type));
  if (file.empty()) return nullptr;
  UsageLog::note_file(file);
  const std::lock_guard lock(mutex);
  const auto known = read.find(file);
  if (known != read.end()) return &known->second;
  Params p(load_config(file), std::make_shared<Choices>(), "family '" + name + "'");
  return &read.emplace(file, read_family(name, p)).first->second;
}

std::string text_family_of(const std::string& model_type) { return renamed("text", model_type); }

std::vector<std::string> family_names() { return shipped_profile_names("families"); }

std::string why_not_priced(const std::string& model_type) {
  Params types = model_types();
  Params reasons = types.optional_child("not_priced", "not_priced");
  for (const std::string& why : reasons.keys()) {
    const std::vector<std::string> names = reasons.words(why, "model types");
    if (std::find(names.begin(), names.end(), model_type) != names.end()) return why;
  }
  return "";
}

bool is_harmless_model_key(std::string_view key) {
  return has_word(kHarmlessModelKeys, key) ||
         has_one(key,
                 {"_", "base_model_", "unsloth_", "summary_", "initializer_", "layernorm_full_attention_", "layernorm_linear_attention_",
                  "layernorm_mlp_"},
                 {"_dropout", "_pdrop", "_eps", "_epsilon", "_token_id", "_token_ids", "_loss_coef", "_alpha_factor", "_beta_factor"});
}

bool is_multimodal_key(std::string_view key) {
  constexpr std::string_view kKeys =
      "text_config perceiver_config speech_config adapter_config ignore_index pixel_shuffle_factor use_unified_vision_chunk "
      "process_image_mode media_placeholder_token_id out_hidden_size downsample_factor scale_factor alignment_intermediate_size "
      "projection_dim max_splits_per_img";
  return has_word(kKeys, key) || has_one(key,
                                         {"vision_", "visual_", "image_", "img_", "video_", "audio_", "mm_", "projector_",
                                          "multimodal_projector_", "boi_", "eoi_", "spatial_"},
                                         {"_token_index"});
}

bool has_word(std::string_view words, std::string_view word) {
  return !word.empty() && word.find(' ') == std::string_view::npos &&
         fmt::format(" {} ", words).find(fmt::format(" {} ", word)) != std::string::npos;
}

bool is_off(const std::string& yaml) {
  static const std::array<std::string_view, 12> values{"false", "False", "0", "0.0", "0.", "\"\"", "[]", "{}", "null", "~", "", "none"};
  return std::find(values.begin(), values.end(), yaml) != values.end();
}

void check_model_keys(Params& p, const Family& family) {
  const std::string of = family.name.empty() ? "a config without model_type" : family.name;
  const auto is_of_family = [&](std::string_view key) {
    return has_word(kKeysOfAll, key) || is_key_of(family.experts.layers, key) ||
           std::find(family.keys.begin(), family.keys.end(), key) != family.keys.end();
  };
  std::vector<std::pair<std::string, std::string>> only = family.only;
  only.insert(only.end(), {{"is_causal", "true"}, {"is_encoder_decoder", "false"}, {"add_cross_attention", "false"}});
  for (const auto& [key, value] : only) {
    const std::string found = p.inline_text(key, value);
    if (found != value) p.fail_at(key, fmt::format("'{}' = {} is not priced for {}; only {} is", key, found, of, value));
  }
  for (const std::string& key : p.keys()) {
    const auto is_only = [&](const auto& only) { return only.first == key; };
    // for families that always normalize queries and keys
    if (key == "use_qk_norm" && family.qk_norm != QkNorm::kNone) continue;
    if (is_of_family(key) || is_harmless_model_key(key) || std::any_of(only.begin(), only.end(), is_only)) continue;
    const std::string value = p.inline_text(key, "");
    if (is_off(value)) continue;
    p.fail_at(key,
              fmt::format("'{}' = {} is not understood for {} and may change weights, KV or FLOPs; if it changes none of them, remove it "
                          "from a copy of the file",
                          key, value.size() > 60 ? value.substr(0, 57) + "..." : value, of));
  }
}

}  // namespace kvlab
