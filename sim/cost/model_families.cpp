#include "sim/cost/model_families.h"

#include <algorithm>
#include <map>

namespace kvlab {

namespace {

const std::vector<std::string_view> kLatentKeys{"attention_bias",   "q_lora_rank",      "kv_lora_rank",
                                                "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"};

// Sizes: vocabulary, hidden, intermediate, layers, q_heads, kv_heads, head_dim, positions. Experts: layers, experts, per_token, width,
// shared_width, shared_experts, first_dense. Source: the configuration and model classes of transformers 4.57.1; of deepseek, internlm2
// the code in their repositories.
const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {.name = "llama", .sizes = {32000, 4096, 11008, 32, 32, 0, 0, 2048}, .keys = {"attention_bias", "mlp_bias"}},
      {.name = "mistral", .sizes = {32000, 4096, 14336, 32, 32, 0, 0, 131072}, .keys = {"sliding_window", "max_window_layers"}},
      {.name = "ministral", .sizes = {32000, 4096, 14336, 32, 32, 8, 0, 131072}, .keys = {"sliding_window"}},
      {.name = "mixtral",
       .sizes = {32000, 4096, 14336, 32, 32, 8, 0, 131072},
       .experts = {ExpertLayers::kAll, 8, 2},
       .keys = {"sliding_window"}},
      {.name = "qwen2",
       .sizes = {151936, 4096, 22016, 32, 32, 0, 0, 32768},
       .qkv_bias = true,
       .keys = {"sliding_window", "use_sliding_window", "max_window_layers"}},
      {.name = "qwen2_vl",
       .sizes = {152064, 8192, 29568, 80, 64, 8, 0, 32768},
       .qkv_bias = true,
       .keys = {"sliding_window", "use_sliding_window", "max_window_layers"}},
      {.name = "qwen2_moe",
       .sizes = {151936, 2048, 5632, 24, 16, 16, 0, 32768},
       .experts = {ExpertLayers::kSparseStep, 60, 4, 1408, 5632, 0, 0, true},
       .qkv_bias = true,
       .keys = {"sliding_window", "use_sliding_window", "max_window_layers", "qkv_bias", "shared_expert_intermediate_size"}},
      {.name = "qwen3",
       .sizes = {151936, 4096, 22016, 32, 32, 0, 128, 32768},
       .qk_norm = QkNorm::kPerHead,
       .keys = {"attention_bias", "sliding_window", "use_sliding_window", "max_window_layers"}},
      {.name = "qwen3_vl",
       .sizes = {151936, 4096, 22016, 32, 32, 32, 128, 128000},
       .qk_norm = QkNorm::kPerHead,
       .keys = {"attention_bias"}},
      {.name = "qwen3_moe",
       .sizes = {151936, 2048, 6144, 24, 32, 4, 0, 32768},
       .experts = {ExpertLayers::kSparseStep, 128, 8, 768},
       .qk_norm = QkNorm::kPerHead,
       .keys = {"attention_bias", "sliding_window", "use_sliding_window", "max_window_layers"}},
      {.name = "qwen3_vl_moe",
       .sizes = {151936, 2048, 5632, 24, 16, 16, 0, 128000},
       .experts = {ExpertLayers::kSparseStep, 60, 4, 1408},
       .qk_norm = QkNorm::kPerHead,
       .keys = {"attention_bias"}},
      {.name = "gemma", .sizes = {256000, 3072, 24576, 28, 16, 16, 256, 8192}, .tied_embeddings = true, .keys = {"attention_bias"}},
      {.name = "gemma2",
       .sizes = {256000, 2304, 9216, 26, 8, 4, 256, 8192},
       .tied_embeddings = true,
       .norms = 4,
       .keys = {"attention_bias", "sliding_window"}},
      {.name = "gemma3_text",
       .sizes = {262208, 2304, 9216, 26, 8, 4, 256, 131072},
       .tied_embeddings = true,
       .norms = 4,
       .qk_norm = QkNorm::kPerHead,
       .keys = {"attention_bias", "sliding_window", "sliding_window_pattern"},
       .only = {{"use_bidirectional_attention", "false"}}},
      {.name = "phi3", .sizes = {32064, 3072, 8192, 32, 32, 0, 0, 4096}, .keys = {"sliding_window"}, .only = {{"full_attn_mod", "1"}}},
      {.name = "opt",
       .sizes = {50272, 768, 3072, 12, 12, 0, 0, 2048},
       .gated_mlp = false,
       .tied_embeddings = true,
       .qkv_bias = true,
       .o_bias = true,
       .mlp_bias = true,
       .norm_bias = true,
       .learned_positions = true,
       .keys = {"ffn_dim", "word_embed_proj_dim"},
       .only = {{"do_layer_norm_before", "true"},
                {"enable_bias", "true"},
                {"layer_norm_elementwise_affine", "true"},
                {"_remove_final_layer_norm", "false"}}},
      {.name = "gpt_neox",
       .sizes = {50432, 6144, 24576, 44, 64, 0, 0, 2048},
       .gated_mlp = false,
       .qkv_bias = true,
       .o_bias = true,
       .mlp_bias = true,
       .norm_bias = true,
       .keys = {"attention_bias"}},
      {.name = "starcoder2",
       .sizes = {49152, 3072, 12288, 30, 24, 2, 0, 4096},
       .gated_mlp = false,
       .tied_embeddings = true,
       .qkv_bias = true,
       .o_bias = true,
       .mlp_bias = true,
       .norm_bias = true,
       .keys = {"use_bias", "sliding_window"},
       .only = {{"mlp_type", "default"}}},
      {.name = "arcee", .sizes = {32000, 2560, 18432, 32, 32, 0, 0, 4096}, .gated_mlp = false, .keys = {"attention_bias", "mlp_bias"}},
      {.name = "glm",
       .sizes = {151552, 4096, 13696, 40, 32, 2, 128, 131072},
       .qkv_bias = true,
       .bias_reaches_o = false,
       .keys = {"attention_bias"}},
      {.name = "glm4",
       .sizes = {151552, 4096, 13696, 40, 32, 2, 128, 131072},
       .qkv_bias = true,
       .bias_reaches_o = false,
       .norms = 4,
       .keys = {"attention_bias"}},
      {.name = "glm4_moe",
       .sizes = {151552, 4096, 10944, 46, 96, 8, 0, 131072},
       .experts = {ExpertLayers::kFirstDense, 128, 8, 1408, 0, 1, 1},
       .bias_reaches_o = false,
       .qk_norm = QkNorm::kPerHead,
       .keys = {"attention_bias", "use_qk_norm"}},
      {.name = "deepseek",
       .sizes = {102400, 4096, 11008, 30, 32, 32, 0, 2048},
       .experts = {ExpertLayers::kFirstDense, 0, 0, 1407},
       .keys = {"attention_bias"},
       .only = {{"mlp_bias", "false"}}},
      {.name = "deepseek_v2",
       .sizes = {32000, 4096, 11008, 32, 32, 0, 0, 2048},
       .experts = {ExpertLayers::kFirstDense, 64, 0, 1407, 0, 2, 0},
       .attention = FamilyAttention::kLatent,
       .bias_reaches_o = false,
       .keys = kLatentKeys},
      {.name = "deepseek_v3",
       .sizes = {129280, 7168, 18432, 61, 128, 0, 0, 4096},
       .experts = {ExpertLayers::kFirstDense, 256, 8, 2048, 0, 1, 3},
       .attention = FamilyAttention::kLatent,
       .router_bias = true,
       .bias_reaches_o = false,
       .keys = kLatentKeys},
      {.name = "kimi_k2",
       .sizes = {163840, 7168, 18432, 61, 64, 0, 0, 131072},
       .experts = {ExpertLayers::kFirstDense, 384, 8, 2048, 0, 1, 1},
       .attention = FamilyAttention::kLatent,
       .router_bias = true,
       .bias_reaches_o = false,
       .keys = kLatentKeys},
      {.name = "qwen3_next",
       .sizes = {151936, 2048, 5632, 48, 16, 2, 256, 32768},
       .experts = {ExpertLayers::kSparseStep, 512, 10, 512, 512, 0, 0, true},
       .attention = FamilyAttention::kGatedDelta,
       .attention_gate = true,
       .qk_norm = QkNorm::kPerHead,
       .keys = {"attention_bias", "shared_expert_intermediate_size", "full_attention_interval", "linear_num_key_heads",
                "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"}},
      {.name = "qwen3_5_moe_text",
       .sizes = {248320, 2048, 5632, 40, 16, 2, 256, 32768},
       .experts = {ExpertLayers::kSparseStep, 256, 8, 512, 512, 0, 0, true},
       .attention = FamilyAttention::kGatedDelta,
       .attention_gate = true,
       .qk_norm = QkNorm::kPerHead,
       .keys = {"attention_bias", "shared_expert_intermediate_size", "full_attention_interval", "linear_num_key_heads",
                "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "mamba_ssm_dtype"},
       .only = {{"attn_output_gate", "true"}}},
      {.name = "minimax_text_01",
       .sizes = {32000, 4096, 14336, 32, 32, 8, 0, 131072},
       .experts = {ExpertLayers::kAll, 8, 2},
       .attention = FamilyAttention::kLightning,
       .keys = {"shared_intermediate_size"}},
      {.name = "minimax_m2",
       .sizes = {200064, 3072, 1536, 62, 48, 8, 128, 196608},
       .experts = {ExpertLayers::kAll, 256, 8},
       .router_bias = true,
       .qk_norm = QkNorm::kWide,
       .keys = {"use_qk_norm", "shared_intermediate_size", "mlp_intermediate_size"},  // the last: of dense layers, which it has none of
       .only = {{"qk_norm_type", "per_layer"}, {"use_routing_bias", "true"}}},
      {.name = "llama4_text",
       .sizes = {202048, 5120, 8192, 48, 40, 8, 128, 131072},
       .experts = {ExpertLayers::kInterleaved, 16, 1},
       .qk_norm = QkNorm::kWithoutWeights,
       .keys = {"use_qk_norm", "attention_chunk_size", "intermediate_size_mlp"},
       .only = {{"attention_bias", "false"}}},
      {.name = "gpt_oss",
       .sizes = {201088, 2880, 2880, 36, 64, 8, 64, 131072},
       .experts = {.layers = ExpertLayers::kAll, .experts = 128, .per_token = 4, .has_bias = true},
       .qkv_bias = true,
       .o_bias = true,
       .has_sinks = true,
       .keys = {"attention_bias", "sliding_window"}},
      {.name = "cohere",
       .sizes = {256000, 8192, 22528, 40, 64, 0, 0, 8192},
       .tied_embeddings = true,
       .norms = 1,
       .qk_norm = QkNorm::kWide,
       .keys = {"attention_bias", "use_qk_norm"}},
      {.name = "cohere2",
       .sizes = {256000, 8192, 22528, 40, 64, 0, 0, 8192},
       .tied_embeddings = true,
       .norms = 1,
       .keys = {"attention_bias", "sliding_window", "sliding_window_pattern"},
       .only = {{"use_gated_activation", "true"}, {"use_embedding_sharing", "true"}, {"use_parallel_block", "true"}}},
      {.name = "olmo", .sizes = {50304, 4096, 11008, 32, 32, 0, 0, 2048}, .norm_has_weights = false, .keys = {"attention_bias"}},
      {.name = "olmo2", .sizes = {50304, 4096, 11008, 32, 32, 0, 0, 2048}, .qk_norm = QkNorm::kWide, .keys = {"attention_bias"}},
      {.name = "olmo3",
       .sizes = {50304, 4096, 11008, 32, 32, 0, 0, 2048},
       .qk_norm = QkNorm::kWide,
       .keys = {"attention_bias", "sliding_window"}},
      {.name = "olmoe",
       .sizes = {50304, 2048, 2048, 16, 16, 0, 0, 4096},
       .experts = {ExpertLayers::kAll, 64, 8},
       .qk_norm = QkNorm::kWide,
       .keys = {"attention_bias"}},
      {.name = "granite", .sizes = {32000, 4096, 11008, 32, 32, 0, 0, 2048}, .keys = {"attention_bias", "mlp_bias"}},
      {.name = "granitemoe",
       .sizes = {32000, 4096, 11008, 32, 32, 0, 0, 2048},
       .experts = {ExpertLayers::kAll, 8, 2},
       .keys = {"attention_bias"}},
      {.name = "granitemoeshared",
       .sizes = {32000, 4096, 11008, 32, 32, 0, 0, 2048},
       .experts = {ExpertLayers::kAll, 8, 2},
       .keys = {"attention_bias", "shared_intermediate_size"}},
      {.name = "seed_oss",
       .sizes = {155136, 4096, 27648, 64, 80, 8, 128, 524288},
       .qkv_bias = true,
       .bias_reaches_o = false,
       .keys = {"attention_bias", "attention_out_bias", "mlp_bias"}},
      {.name = "smollm3",
       .sizes = {128256, 2048, 11008, 36, 16, 4, 0, 32768},
       .tied_embeddings = true,
       .keys = {"attention_bias", "mlp_bias", "sliding_window", "use_sliding_window"}},
      {.name = "exaone4",
       .sizes = {102400, 4096, 16384, 32, 32, 32, 0, 2048},
       .qk_norm = QkNorm::kPerHead,
       .keys = {"sliding_window", "sliding_window_pattern"}},
      {.name = "ernie4_5", .sizes = {103424, 1024, 3072, 18, 16, 2, 128, 131072}, .tied_embeddings = true, .keys = {"use_bias"}},
      {.name = "internlm2", .sizes = {103168, 4096, 11008, 32, 32, 0, 0, 2048}, .qkv_bias = true, .o_bias = true, .keys = {"bias"}},
  };
  return all;
}

struct Reason {
  std::vector<std::string_view> types;
  std::string_view why;
};

const std::vector<Reason>& reasons() {
  static const std::vector<Reason> all = {
      {{// encoders
        "bert",
        "roberta",
        "xlm-roberta",
        "distilbert",
        "albert",
        "electra",
        "deberta",
        "deberta-v2",
        "modernbert",
        "mpnet",
        "camembert",
        "nomic_bert",
        "new",
        "ernie",
        "xlnet",
        "xlm",
        "esm",
        "vit",
        "clip",
        "siglip",
        "siglip2",
        "dinov2",
        "wav2vec2",
        "hubert",
        "clip_text_model",
        "clip_vision_model",
        "siglip_text_model",
        "gte",
        "eurobert",
        "jina_bert"},
       "an encoder has no KV cache; only decoder-only models are priced"},
      {{// encoder-decoders
        "t5",
        "mt5",
        "umt5",
        "longt5",
        "t5gemma",
        "bart",
        "mbart",
        "pegasus",
        "whisper",
        "marian",
        "m2m_100",
        "led",
        "blenderbot",
        "prophetnet",
        "fsmt",
        "nllb-moe",
        "seamless_m4t",
        "switch_transformers",
        "bigbird_pegasus",
        "encoder-decoder",
        "speech-encoder-decoder",
        "vision-encoder-decoder",
        "florence2",
        "blenderbot-small",
        "byt5",
        "plbart",
        "udop",
        "pix2struct"},
       "encoder-decoder models are not priced, only decoder-only ones"},
      {{// an index picks the tokens that latent attention sees
        "deepseek_v32", "glm_moe_dsa"},
       "its sparse attention to tokens that an index picks is not priced"},
      {{// two attentions per layer, experts that compute nothing
        "longcat_flash"},
       "its layers of two attentions and its experts without weights are not priced"},
      {{// other layers than attention
        "qwen3_5",         "mamba",      "mamba2",    "falcon_mamba",
        "jamba",           "bamba",      "falcon_h1", "zamba",
        "zamba2",          "nemotron_h", "rwkv",      "rwkv7",
        "recurrent_gemma", "lfm2",       "lfm2_moe",  "granitemoehybrid",
        "kimi_linear",     "xlstm",      "plamo2",    "bailing_moe_linear"},
       "its linear-attention or state-space layers are of a kind that is not priced"},
      {{// cross-attention
        "mllama", "mllama_text_model"},
       "its cross-attention layers are not priced"},
  };
  return all;
}

}  // namespace

const Family& generic_family() {
  static const Family generic = [] {
    Family f;
    f.experts.layers = ExpertLayers::kAll;
    f.keys = {"attention_bias",
              "mlp_bias",
              "sliding_window",
              "use_sliding_window",
              "max_window_layers",
              "sliding_window_pattern",
              "shared_expert_intermediate_size",
              "gated_mlp"};
    return f;
  }();
  return generic;
}

const Family* find_family(std::string_view model_type) {
  static const std::map<std::string_view, std::string_view> same{{"qwen2_vl_text", "qwen2_vl"},         {"qwen2_5_vl", "qwen2_vl"},
                                                                 {"qwen2_5_vl_text", "qwen2_vl"},       {"qwen3_vl_text", "qwen3_vl"},
                                                                 {"qwen3_vl_moe_text", "qwen3_vl_moe"}, {"minimax", "minimax_text_01"},
                                                                 {"minimax_m1", "minimax_text_01"}};
  const auto other = same.find(model_type);
  const std::string_view name = other == same.end() ? model_type : other->second;
  const auto at = std::find_if(families().begin(), families().end(), [&](const Family& f) { return f.name == name; });
  return at == families().end() ? nullptr : &*at;
}

std::string_view text_family_of(std::string_view model_type) {
  static const std::map<std::string_view, std::string_view> texts{
      {"gemma3", "gemma3_text"},       {"llama4", "llama4_text"},     {"llava", "llama"},
      {"llava_next", "llama"},         {"mistral3", "mistral"},       {"qwen2_vl", "qwen2_vl_text"},
      {"qwen2_5_vl", "qwen2_vl_text"}, {"qwen3_vl", "qwen3_vl_text"}, {"qwen3_vl_moe", "qwen3_vl_moe_text"},
      {"paligemma", "gemma"},          {"vipllava", "llama"},         {"idefics3", "llama"},
      {"aya_vision", "cohere2"}};
  const auto at = texts.find(model_type);
  return at == texts.end() ? "" : at->second;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& f : families()) names.emplace_back(f.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string_view why_not_priced(std::string_view model_type) {
  for (const Reason& reason : reasons())
    if (std::find(reason.types.begin(), reason.types.end(), model_type) != reason.types.end()) return reason.why;
  return "";
}

}  // namespace kvlab
