#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab {

struct PublishedModel {
  const char* name;
  const char* keys;
  std::int64_t parameters, kv_bytes;
};

// The keys of each repository's config.json that matter. Parameters: safetensors metadata of the repository, or of the text model the sum
// over its tensors' shapes; without extra layers for multi-token prediction. KV: 2 * layers * KV heads * head_dim * 2 bytes.
inline const PublishedModel kPublished[] = {
    {"Llama-3.2-1B", R"("model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,
       "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": true,
       "attention_bias": false, "mlp_bias": false, "pretraining_tp": 1, "max_position_embeddings": 131072, "rope_theta": 500000.0,
       "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"})",
     1'235'814'400, 32'768},
    {"Llama-2-7b, as the class has it", R"("model_type": "llama")", 6'738'415'616, 524'288},
    {"Mistral-7B-v0.1", R"("model_type": "mistral", "sliding_window": 4096, "num_key_value_heads": 8)", 7'241'732'096, 131'072},
    {"Mistral-Nemo-12B", R"("model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "num_hidden_layers": 40, "vocab_size": 131072,
       "sliding_window": null, "max_position_embeddings": 1024000)",
     12'247'782'400, 163'840},
    {"Mixtral-8x7B", R"("model_type": "mixtral", "num_local_experts": 8, "output_router_logits": false, "router_aux_loss_coef": 0.02)",
     46'702'792'704, 131'072},
    {"Qwen2.5-0.5B",
     R"("model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
       "num_key_value_heads": 2, "tie_word_embeddings": true, "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 24,
       "use_mrope": false, "vocab_size": 151936)",
     494'032'768, 12'288},
    {"Qwen1.5-MoE-A2.7B", R"("model_type": "qwen2_moe", "norm_topk_prob": false, "decoder_sparse_step": 1)", 14'315'784'192, 196'608},
    {"Qwen3-8B",
     R"("model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8,
       "max_window_layers": 36, "sliding_window": null)",
     8'190'735'360, 147'456},
    {"Qwen3-235B-A22B", R"("model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
       "num_hidden_layers": 94, "num_attention_heads": 64, "head_dim": 128, "mlp_only_layers": [])",
     235'093'634'560, 192'512},
    {"gemma-2b",
     R"("model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
       "num_key_value_heads": 1)",
     2'506'172'416, 18'432},
    {"gemma-2-9b",
     R"("model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16,
       "num_key_value_heads": 8, "query_pre_attn_scalar": 256, "cache_implementation": "hybrid")",
     9'241'705'984, 344'064},
    {"gemma-3-1b",
     R"("model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1,
       "vocab_size": 262144, "sliding_window": 512, "sliding_window_pattern": 6)",
     999'885'952, 26'624},
    {"Phi-3-mini-4k",
     R"("model_type": "phi3", "sliding_window": 2047, "auto_map": {"AutoConfig": "x"}, "resid_pdrop": 0.0, "embd_pdrop": 0.0)",
     3'821'079'552, 393'216},
    {"phi-4", R"("model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40,
       "num_key_value_heads": 10, "vocab_size": 100352)",
     14'659'507'200, 204'800},
    {"opt-6.7b", R"("model_type": "opt", "hidden_size": 4096, "ffn_dim": 16384, "num_hidden_layers": 32, "num_attention_heads": 32,
       "word_embed_proj_dim": 4096, "do_layer_norm_before": true, "_remove_final_layer_norm": false, "prefix": "</s>", "layerdrop": 0.0)",
     6'658'473'984, 524'288},
    {"gpt-neox-20b",
     R"("model_type": "gpt_neox", "vocab_size": 50432, "rotary_pct": 0.25, "use_parallel_residual": true, "attention_probs_dropout_prob": 0,
       "hidden_dropout_prob": 0)",
     20'554'567'680, 1'081'344},
    {"starcoder2-7b",
     R"("model_type": "starcoder2", "hidden_size": 4608, "intermediate_size": 18432, "num_hidden_layers": 32, "num_attention_heads": 36,
       "num_key_value_heads": 4, "use_bias": true, "sliding_window": 4096, "mlp_type": "default", "norm_type": "layer_norm", "embedding_dropout": 0.1)",
     7'173'923'840, 65'536},
    {"GLM-4-9B-0414", R"("model_type": "glm4", "attention_bias": true, "partial_rotary_factor": 0.5)", 9'400'279'040, 40'960},
    {"glm-4-9b-chat-hf", R"("model_type": "glm")", 9'399'951'360, 40'960},
    {"GLM-4.5-Air",
     R"("model_type": "glm4_moe", "head_dim": 128, "attention_bias": true, "num_nextn_predict_layers": 1, "routed_scaling_factor": 1.0,
       "n_group": 1, "topk_group": 1, "use_qk_norm": false)",
     106'852'245'504, 188'416},
    {"gpt-oss-20b in 16 bit",
     R"("model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32, "attention_bias": true, "experts_per_token": 4,
       "initial_context_length": 4096, "swiglu_limit": 7.0)",
     20'914'757'184, 49'152},
    {"gpt-oss-120b in 16 bit", R"("model_type": "gpt_oss")", 116'829'156'672, 73'728},
    {"c4ai-command-r-v01", R"("model_type": "cohere", "logit_scale": 0.0625, "use_qk_norm": false)", 34'980'831'232, 1'310'720},
    {"c4ai-command-r-plus", R"("model_type": "cohere", "hidden_size": 12288, "intermediate_size": 33792, "num_hidden_layers": 64,
       "num_attention_heads": 96, "num_key_value_heads": 8, "use_qk_norm": true)",
     103'810'674'688, 262'144},
    {"c4ai-command-r7b",
     R"("model_type": "cohere2", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
       "num_key_value_heads": 8, "head_dim": 128, "sliding_window_pattern": 4, "position_embedding_type": "rope_gptj", "use_embedding_sharing": true,
       "use_gated_activation": true, "use_parallel_block": true, "use_parallel_embedding": true, "layer_switch": 4, "order_of_interleaved_layers":
       "local_attn_first", "rotary_pct": 1.0)",
     8'028'033'024, 131'072},
    {"OLMo-7B", R"("model_type": "olmo", "clip_qkv": null)", 6'888'095'744, 524'288},
    {"OLMo-2-1124-7B", R"("model_type": "olmo2", "vocab_size": 100352)", 7'298'617'344, 524'288},
    {"OLMoE-1B-7B", R"("model_type": "olmoe", "intermediate_size": 1024, "norm_topk_prob": false)", 6'919'161'856, 131'072},
    {"granite-3.0-2b",
     R"("model_type": "granite", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40, "num_key_value_heads": 8,
       "vocab_size": 49155, "tie_word_embeddings": true, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
       "residual_multiplier": 0.22)",
     2'533'531'648, 81'920},
    {"granite-3.0-1b-a400m", R"("model_type": "granitemoe", "hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 24,
       "num_attention_heads": 16, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 8, "vocab_size": 49155,
       "tie_word_embeddings": true)",
     1'334'628'352, 49'152},
    {"Seed-OSS-36B", R"("model_type": "seed_oss", "hidden_size": 5120, "residual_dropout": 0.1)", 36'151'104'512, 262'144},
    {"SmolLM3-3B", R"("model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0], "layer_types": null)", 3'075'098'624, 73'728},
    {"deepseek-moe-16b", R"("model_type": "deepseek", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
       "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2,
       "num_experts_per_tok": 6, "first_k_dense_replace": 1, "scoring_func": "softmax", "aux_loss_alpha": 0.001)",
     16'375'728'128, 229'376},
    {"internlm2-7b",
     R"("model_type": "internlm2", "hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 92544,
       "bias": false, "attn_implementation": "eager")",
     7'737'708'544, 131'072},
    {"Ministral-8B",
     R"("model_type": "ministral", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "head_dim": 128,
       "vocab_size": 131072, "sliding_window": 32768)",
     8'019'808'256, 147'456},
    {"Qwen2-VL-7B, text", R"("model_type": "qwen2_vl_text", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
       "num_attention_heads": 28, "num_key_value_heads": 4)",
     7'615'616'512, 57'344},
    {"Qwen3-VL-8B, text", R"("model_type": "qwen3_vl_text", "intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8)",
     8'190'735'360, 147'456},
    {"Qwen3-VL-30B-A3B, text",
     R"("model_type": "qwen3_vl_moe_text", "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
       "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8)",
     30'532'122'624, 98'304},
    {"Olmo-3-7B", R"("model_type": "olmo3", "vocab_size": 100278)", 7'298'011'136, 524'288},
    {"EXAONE-4.0-1.2B",
     R"("model_type": "exaone4", "hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 30, "num_key_value_heads": 8,
       "head_dim": 64, "sliding_window": null, "sliding_window_pattern": null, "tie_word_embeddings": true)",
     1'279'391'488, 61'440},
    {"ERNIE-4.5-0.3B", R"("model_type": "ernie4_5")", 360'748'032, 18'432},
    {"DeepSeek-V2-Lite", R"("model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
       "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2,
       "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
       "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400, "topk_method": "greedy", "ep_size": 1, "attention_bias": false,
       "routed_scaling_factor": 1.0, "scoring_func": "softmax", "aux_loss_alpha": 0.001, "seq_aux": true)",
     15'706'484'224, 31'104},
    {"DeepSeek-V3", R"("model_type": "deepseek_v3", "vocab_size": 129280, "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4,
       "num_nextn_predict_layers": 1, "num_experts_per_tok": 8, "rope_interleave": true, "qk_head_dim": 192, "head_dim": 64)",
     671'026'419'200, 70'272},
    {"Kimi-K2", R"("model_type": "kimi_k2", "n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64,
       "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0)",
     1'026'408'232'448, 70'272},
    {"Qwen3-Next-80B-A3B",
     R"("model_type": "qwen3_next", "intermediate_size": 5120, "full_attention_interval": 4, "partial_rotary_factor": 0.25,
       "use_sliding_window": false, "mlp_only_layers": [])",
     79'674'391'296, 24'576},
    {"MiniMax-M2", R"("model_type": "minimax_m2", "use_qk_norm": true, "qk_norm_type": "per_layer", "use_routing_bias": true,
       "shared_intermediate_size": 0, "mlp_intermediate_size": 8192, "num_mtp_modules": 3, "mtp_transformer_layers": 1, "use_mtp": true,
       "attn_type_list": [1, 1], "layernorm_mlp_beta": 1.0, "shared_moe_mode": "sigmoid", "rotary_dim": 64, "sliding_window": null)",
     228'689'764'864, 253'952},
    // Its report (arXiv:2501.08313): 456 B, of which seven of eight layers keep a state.
    {"MiniMax-Text-01", R"("model_type": "minimax_text_01", "hidden_size": 6144, "intermediate_size": 9216, "num_hidden_layers": 80,
       "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 32, "num_experts_per_tok": 2, "vocab_size": 200064,
       "postnorm": true, "shared_intermediate_size": 0, "layernorm_full_attention_alpha": 3.5565588200778455, "attn_type_list": [
       0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1,
       0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1])",
     456'089'655'296, 40'960},
    // By hand, from the shapes of the model classes.
    {"Qwen3.5-397B-A17B, text model",
     R"("model_type": "qwen3_5_moe_text", "hidden_size": 4096, "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 2,
       "head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
       "linear_num_key_heads": 16, "linear_num_value_heads": 64, "mamba_ssm_dtype": "float32", "moe_intermediate_size": 1024,
       "shared_expert_intermediate_size": 1024, "num_experts": 512, "num_experts_per_tok": 10, "vocab_size": 248320,
       "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false, "attn_output_gate": true)",
     396'346'350'336, 30'720},
    {"arcee, as the class has it", R"("model_type": "arcee")", 163'840'000 + 32LL * (26'214'400 + 94'371'840 + 5'120) + 2'560, 327'680},
    {"granitemoeshared, as the class has it", R"("model_type": "granitemoeshared", "shared_intermediate_size": 1024)",
     262'144'000 + 32LL * (67'108'864 + 8 * 135'266'304LL + 32'768 + 12'582'912 + 8'192) + 4'096, 524'288},
    {"Llama-4-Scout, text", R"("model_type": "llama4_text")",
     2'068'971'520 + 48LL * (62'914'560 + 17 * 125'829'120LL + 81'920 + 10'240) + 5'120, 196'608},
};

// Models whose publishers name rounded counts of parameters, in billions (model cards; active 0: not published).
// KV bytes of a token by hand: see the sum beside each.
struct Recent {
  const char* name;
  std::string keys;
  double total, active;
  std::int64_t kv_bytes;
};

inline std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

inline const std::string kGlm5 = R"("model_type": "glm_moe_dsa", "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256,
  "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "num_attention_heads": 64)";
inline const std::string kNemotron =
    R"("model_type": "nemotron_h", "num_attention_heads": 32, "num_key_value_heads": 2, "n_routed_experts": )";
inline const std::string kKimi = R"("model_type": "kimi_linear", "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "num_expert_group": 1, "tie_word_embeddings": false, )";
inline const std::string kGemma4 = R"("model_type": "gemma4_text", "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,
  "sliding_window": 1024, "use_bidirectional_attention": "vision", )";

inline const std::vector<Recent>& recent_models() {
  static const std::vector<Recent> all = {
      // 16 layers x 2 x 4 heads x 256 x 2 bytes
      {"Qwen3.5-27B",
       R"("model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
        "num_key_value_heads": 4, "linear_num_value_heads": 48, "full_attention_interval": 4, "attn_output_gate": true, "mtp_num_hidden_layers": 1)",
       27, 0, 65'536},
      // 61 x (576 x 2 + 128 + 4)
      {"DeepSeek-V3.2", R"("model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048)", 671, 37, 78'324},
      {"GLM-5", kGlm5 + R"(, "indexer_rope_interleave": true)", 744, 40, 100'152},  // 78 x (1152 + 132)
      // 78 x 1152 + 21 x 132: every fourth layer computes an index
      {"GLM-5.2", kGlm5 + R"(, "index_topk_freq": 4, "index_skip_topk_offset": 3)", 744, 40, 92'628},
      // 21 layers of 4 tokens per entry: (1024 + 132) / 4; 20 of 128: 1024 / 128
      {"DeepSeek-V4-Flash",
       R"("model_type": "deepseek_v4", "expert_dtype": "fp4", "hc_mult": 4, "compress_ratios": [0, 0, )" + repeated("4, 128, ", 20) +
           R"(4, 0])",
       284, 13, 6'229},
      {"DeepSeek-V4-Pro",  // 30 x 289 + 31 x 8
       R"("model_type": "deepseek_v4", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "moe_intermediate_size": 3072,
        "n_routed_experts": 384, "q_lora_rank": 1536, "o_groups": 16, "index_topk": 1024, "compress_ratios": [128, 128, )" +
           repeated("4, 128, ", 29) + "4, 0]",
       1600, 49, 8'918},
      // 60 x 2 x 4 x 128 x 2 and an index key of 256 bytes in 57 layers
      {"MiniMax-M3",
       R"("model_type": "minimax_m3", "dense_intermediate_size": 12288, "shared_intermediate_size": 3072, "use_qk_norm": true,
        "qk_norm_type": "per_head", "use_routing_bias": true, "swiglu_alpha": 1.702, "sparse_attention_config": {"use_sparse_attention": true,
        "sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_score_type": "max",
        "sparse_attention_freq": [0, 0, 0)" +
           repeated(", 1", 57) + "]}",
       428, 0, 137'472},
      {"Gemma-4-31B", kGemma4 + R"("hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4, "global_head_dim": 512)",
       30.7, 0, 50 * 2 * 16 * 256 * 2 + 10 * 2 * 4 * 512 * 2},
      {"Gemma-4-26B-A4B", kGemma4 + R"("hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_global_key_value_heads": 2, "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8,
        "moe_intermediate_size": 704)",
       25.2, 3.8, 25 * 2 * 8 * 256 * 2 + 5 * 2 * 2 * 512 * 2},
      // 9 full layers of 4 heads, 39 with a window of 8: keys of 192, values of 128
      {"MiMo-V2-Flash", R"("model_type": "mimo_v2_flash", "sliding_window": 128, "swa_num_key_value_heads": 8, "v_head_dim": 128)", 309, 15,
       (9 * 4 + 39 * 8) * 320 * 2},
      {"Step-3.5-Flash",
       R"("model_type": "step3p5", "sliding_window": 512, "share_expert_dim": 1280, "num_sliding_attention_heads": 96,
        "layer_types": [)" +
           repeated(R"("full_attention", "sliding_attention", "sliding_attention", "sliding_attention", )", 11) + R"("full_attention"])",
       196, 11, 45 * 2 * 8 * 128 * 2},
      {"Nemotron-3-Nano-30B-A3B",
       kNemotron + R"(128, "hidden_size": 2688, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "intermediate_size": 1856, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "num_experts_per_tok": 6,
        "mamba_num_heads": 64, "num_hidden_layers": 52)",
       31.6, 3.6, 6 * 2 * 2 * 128 * 2},
      {"Nemotron-3-Super-120B-A12B",
       kNemotron +
           R"(512, "hidden_size": 4096, "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
        "num_hidden_layers": 88, "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376, "moe_latent_size": 1024,
        "num_experts_per_tok": 22, "mamba_num_heads": 128)",
       120.6, 12.7, 8 * 2 * 2 * 128 * 2},
      {"Nemotron-H-56B", R"("model_type": "nemotron_h", "hidden_size": 8192, "intermediate_size": 32768, "num_attention_heads": 64,
        "num_key_value_heads": 8, "attention_head_dim": 128, "mamba_num_heads": 256, "ssm_state_size": 256, "num_hidden_layers": 118,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-")",
       56.4, 0, 10 * 2 * 8 * 128 * 2},
      // 24 layers x 576 x 2
      {"Kimi-K3", kKimi + R"("hidden_size": 7168, "intermediate_size": 33792, "num_hidden_layers": 93, "num_attention_heads": 96,
        "num_key_value_heads": 96, "q_lora_rank": 1536, "num_experts": 896, "num_experts_per_token": 16, "num_shared_experts": 2,
        "moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584, "latent_moe_use_norm": true, "mla_use_output_gate": true,
        "attn_res_block_size": 12, "first_k_dense_replace": 1, "linear_attn_config": {"num_heads": 96, "head_dim": 128, "use_full_rank_gate": true,
        "short_conv_kernel_size": 4, "full_attn_layers": [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68, 72, 76, 80, 84, 88, 92, 93],
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26, 27, 29, 30, 31, 33, 34, 35, 37, 38, 39, 41, 42, 43,
        45, 46, 47, 49, 50, 51, 53, 54, 55, 57, 58, 59, 61, 62, 63, 65, 66, 67, 69, 70, 71, 73, 74, 75, 77, 78, 79, 81, 82, 83, 85, 86, 87, 89, 90, 91]})",
       2800, 104, 27'648},
      // 7 layers x 576 x 2
      {"Kimi-Linear-48B-A3B", kKimi + R"("hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27, "num_attention_heads": 32,
        "num_key_value_heads": 32, "q_lora_rank": null, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
        "moe_intermediate_size": 1024, "first_k_dense_replace": 1, "linear_attn_config": {"num_heads": 32, "head_dim": 128,
        "short_conv_kernel_size": 4, "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26]})",
       49.1, 0, 8'064},
      {"LFM2-1.2B",
       R"("model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 12288, "block_ff_dim": 12288, "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8, 10, 12, 14])",
       1.17, 0, 6 * 2 * 8 * 64 * 2},
      {"Granite-4.0-H-Small",
       R"("model_type": "granitemoehybrid", "hidden_size": 4096, "intermediate_size": 768, "shared_intermediate_size": 1536,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 72, "num_experts_per_tok": 10,
        "vocab_size": 100352, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1,
        "tie_word_embeddings": true, "layer_types": [)" +
           repeated(R"("mamba", )", 5) + R"("attention", )" + repeated(repeated(R"("mamba", )", 9) + R"("attention", )", 3) +
           repeated(R"("mamba", )", 3) + R"("mamba"])",
       32.2, 9, 4 * 2 * 8 * 128 * 2},
      {"Jamba-v0.1", R"("model_type": "jamba", "num_key_value_heads": 8, "num_experts": 16)", 51.6, 12, 4 * 2 * 8 * 128 * 2},
      {"MiMo-7B", R"("model_type": "mimo", "attention_bias": true, "use_sliding_window": false)", 7.63, 0, 36 * 2 * 8 * 128 * 2},
      {"Ministral-3-14B", R"("model_type": "ministral3", "hidden_size": 5120, "intermediate_size": 16384, "num_hidden_layers": 40)", 13.5,
       0, 40 * 2 * 8 * 128 * 2},
      {"Apertus-8B", R"("model_type": "apertus", "intermediate_size": 21504, "num_key_value_heads": 8, "qk_norm": true)", 8.05, 0,
       32 * 2 * 8 * 128 * 2},
      {"Hunyuan-7B", R"("model_type": "hunyuan_v1_dense", "vocab_size": 128167, "intermediate_size": 14336, "num_key_value_heads": 8,
        "head_dim": 128, "tie_word_embeddings": true, "use_qk_norm": true)",
       7.5, 0, 32 * 2 * 8 * 128 * 2},
      {"Phi-2", R"("model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32)", 2.78, 0,
       32 * 2 * 2560 * 2},
      {"Phi-3.5-MoE", R"("model_type": "phimoe", "attention_bias": true, "lm_head_bias": true)", 41.9, 6.6, 32 * 2 * 8 * 128 * 2},
      {"Nemotron-4-340B", R"("model_type": "nemotron", "hidden_size": 18432, "intermediate_size": 73728, "num_hidden_layers": 96,
        "num_attention_heads": 96, "num_key_value_heads": 8)",
       341, 0, 96 * 2 * 8 * 192 * 2},
      {"ERNIE-4.5-21B-A3B", R"("model_type": "ernie4_5_moe", "moe_num_experts": 64, "moe_k": 6, "use_bias": false)", 21.8, 3,
       28 * 2 * 4 * 128 * 2},
      {"dots.llm1", R"("model_type": "dots1", "hidden_size": 4096, "head_dim": 128, "n_routed_experts": 128, "num_experts_per_tok": 6,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 1408)",
       142.8, 14, 62 * 2 * 32 * 128 * 2},
      {"GLM-4.7-Flash", R"("model_type": "glm4_moe_lite")", 30, 3.6, 47 * 576 * 2},
      {"Mistral-Small-4",
       R"("model_type": "mistral4", "kv_lora_rank": 256, "q_lora_rank": 1024, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
        "v_head_dim": 128)",
       119, 6.5, 36 * 320 * 2},
      {"Ling-flash-2.0", R"("model_type": "bailing_moe_v2", "hidden_size": 4096, "intermediate_size": 9216, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8,
        "num_shared_experts": 1, "moe_intermediate_size": 1024, "first_k_dense_replace": 1, "use_qk_norm": true, "use_bias": false)",
       103, 6.1, 32 * 2 * 4 * 128 * 2},
      {"K-EXAONE-236B-A23B",
       R"("model_type": "exaone_moe", "hidden_size": 6144, "intermediate_size": 18432, "num_hidden_layers": 48,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "vocab_size": 153600, "sliding_window": 128, "sliding_window_pattern": 4, "layer_types": [)" +
           repeated(R"("sliding_attention", "sliding_attention", "sliding_attention", "full_attention", )", 11) +
           R"("sliding_attention", "sliding_attention", "sliding_attention", "full_attention"])",
       236, 23, 48 * 2 * 8 * 128 * 2},
      {"Solar-Open-100B", R"("model_type": "solar_open")", 102.6, 12, 48 * 2 * 8 * 128 * 2},
  };
  return all;
}

}  // namespace kvlab
