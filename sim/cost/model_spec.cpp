#include "sim/cost/model_spec.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/params.h"
#include "base/spec_file.h"
#include "base/text.h"
#include "serving/attention_windows.h"
#include "serving/default_kv_heads.h"
#include "serving/longest_text.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::array kDtypes{std::pair{"float16", Dtype::kFp16}, std::pair{"bfloat16", Dtype::kBf16}, std::pair{"float32", Dtype::kFp32},
                             std::pair{"fp8", Dtype::kFp8}, std::pair{"int8", Dtype::kInt8}};

using Text = const char*;

std::int64_t count(Params& p, const std::string& key, Text meaning) { return p.required<std::int64_t>(key, 1, kMaxWidth, meaning); }

// The first of several names for one thing that the file uses; 0 where it uses none.
std::int64_t any_of(Params& p, std::initializer_list<Text> keys, Text meaning) {
  for (const Text key : keys) {
    if (p.has(key)) return p.required<std::int64_t>(key, 0, kMaxWidth, meaning);
  }
  return 0;
}

bool is_one_of(const std::string& name, const std::set<std::string>& names) { return names.contains(name); }

// What a model_type implies where the file is silent: the defaults of its configuration class in Hugging Face transformers.
void apply_family(ModelSpec& m) {
  const bool is_opt = m.family == "opt";
  m.gated_mlp = !is_one_of(m.family, {"opt", "gpt_neox", "gptj", "falcon", "phi", "bloom", "starcoder2"});
  m.tied_embeddings = is_opt || is_one_of(m.family, {"gemma", "gemma2", "gemma3_text"});
  m.qkv_bias = is_opt || is_one_of(m.family, {"qwen2", "qwen2_moe"});
  m.qk_norm = is_one_of(m.family, {"qwen3", "qwen3_moe", "gemma3_text"});
  m.dense_bias = m.norm_bias = m.learned_positions = is_opt;
}

void read_experts(Params& p, ModelSpec& m) {
  m.experts = any_of(p, {"num_local_experts", "num_experts", "n_routed_experts"}, "routed experts per layer");
  if (m.experts == 0) return;
  m.experts_per_token = p.required<std::int64_t>("num_experts_per_tok", 1, m.experts, "experts each token is sent to");
  m.moe_intermediate = any_of(p, {"moe_intermediate_size"}, "width of one expert");
  if (m.moe_intermediate == 0) m.moe_intermediate = count(p, "intermediate_size", "width of one expert");  // Mixtral
  m.shared_intermediate = any_of(p, {"shared_expert_intermediate_size"}, "width of the expert every token uses");
  m.intermediate = 0;
}

void read_dtypes(Params& p, ModelSpec& m) {
  const std::string key = p.has("torch_dtype") ? "torch_dtype" : "dtype";
  const std::string named = p.text(key, "bfloat16", "type of weights and activations");
  m.dtype = parse_dtype(named, p.owner() + ": '" + key + "'");
  m.kv_dtype =
      parse_dtype(p.text("kv_cache_dtype", dtype_name(m.dtype), "type of cached keys and values"), p.owner() + ": 'kv_cache_dtype'");
  m.weight_bits = bits(m.dtype);
  if (!p.has("quantization_config")) return;
  Params q = p.child("quantization_config", "quantization_config");
  const bool is_fp8 = q.text("quant_method", "", "how weights are quantized").find("fp8") != std::string::npos;
  m.weight_bits = q.optional<std::int64_t>("bits", is_fp8 ? 8 : m.weight_bits, 1, 32, "bits of a quantized weight");
}

// Keys that the file sets to null, which some families read in another way than a missing one.
struct Nulls {
  bool kv_heads = false, window = false;
};

void read_heads(Params& p, const Nulls& nulls, ModelSpec& m) {
  m.q_heads = count(p, "num_attention_heads", "query heads");
  const std::int64_t untold = nulls.kv_heads ? m.q_heads : default_kv_heads(m.family, m.q_heads);
  if (!p.has("num_key_value_heads") && m.q_heads % untold != 0)
    p.fail_at("num_attention_heads", "num_key_value_heads is missing, and num_attention_heads is not a multiple of the " +
                                         std::to_string(untold) + " that " + m.family + " has then");
  m.kv_heads = p.optional<std::int64_t>("num_key_value_heads", untold, 1, m.q_heads, "KV heads");
  if (m.q_heads % m.kv_heads != 0) p.fail_at("num_key_value_heads", "num_attention_heads is not a multiple of num_key_value_heads");
  const bool has_default = m.family == "qwen3";
  if (!has_default && !p.has("head_dim") && m.hidden % m.q_heads != 0)
    p.fail_at("hidden_size", "hidden_size is not a multiple of num_attention_heads; give head_dim");
  m.head_dim = p.optional<std::int64_t>("head_dim", has_default ? 128 : m.hidden / m.q_heads, 1, 1 << 14, "channels of one head");
}

// A window counts only where every layer has the same: models that mix layers are priced as full attention.
void read_window(Params& p, const Nulls& nulls, ModelSpec& m) {
  WindowKeys keys{m.family, m.layers};
  if (nulls.window) keys.sliding_window = 0;
  if (p.has("sliding_window")) keys.sliding_window = p.required<std::int64_t>("sliding_window", 0, kMaxWidth, "tokens a query sees");
  if (p.has("use_sliding_window")) keys.use_sliding_window = p.flag("use_sliding_window", false, "whether sliding_window applies");
  if (p.has("max_window_layers"))
    keys.max_window_layers = p.required<std::int64_t>("max_window_layers", 0, kMaxWidth, "the first layer with a window");
  if (p.has("sliding_window_pattern"))
    keys.sliding_window_pattern = p.required<std::int64_t>("sliding_window_pattern", 0, kMaxWidth, "every so many layers one sees all");
  keys.layer_types = p.words("layer_types", "of each layer its attention");
  if (!keys.layer_types.empty() && keys.layer_types.size() != static_cast<std::size_t>(m.layers))
    p.fail_at("layer_types", "'layer_types': expected one type for each of " + std::to_string(m.layers) + " layers");
  const std::vector<std::int64_t> windows = attention_windows(keys);
  const bool are_same = std::all_of(windows.begin(), windows.end(), [&](std::int64_t w) { return w == windows.front(); });
  m.sliding_window = windows.empty() || !are_same ? 0 : windows.front();
}

// A scaling of a kind that is not known, or without a factor, leaves the length as it is: it changes no cost.
std::int64_t read_longest_text(Params& p, std::int64_t max_positions) {
  const char* key = p.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!p.has(key)) return max_positions;
  Params rope = p.child(key, "RoPE scaling");
  const std::string kind = rope.text(rope.has("type") ? "type" : "rope_type", "default", "kind of RoPE scaling");
  const double factor = rope.optional<double>("factor", 1, 1, 1e6, "by how much a text may be longer");
  const auto original =
      rope.optional<std::int64_t>("original_max_position_embeddings", 0, 0, 1 << 30, "longest sequence before the scaling");
  return longest_text(kind, factor, original, max_positions);
}

void refuse_unknown_architectures(Params& p) {
  if (p.has("kv_lora_rank")) p.fail_at("kv_lora_rank", "multi-head latent attention is not priced; use a model with plain K and V");
  if (p.has("decoder_layers") && p.has("encoder_layers")) p.fail_at("encoder_layers", "encoder-decoder models are not priced");
}

ModelSpec read_spec(Params& p, const std::string& name, const std::string& file, const Nulls& nulls) {
  refuse_unknown_architectures(p);
  ModelSpec m;
  m.name = name;
  m.file = file;
  m.family = p.text("model_type", "llama", "architecture family");
  apply_family(m);
  m.layers = p.required<std::int64_t>("num_hidden_layers", 1, 10'000, "layers");
  m.hidden = count(p, "hidden_size", "width of the residual stream");
  m.vocabulary = p.required<std::int64_t>("vocab_size", 1, 1 << 24, "tokens in the vocabulary");
  m.max_positions = p.optional<std::int64_t>("max_position_embeddings", 0, 0, 1 << 30, "longest sequence");
  m.max_tokens = read_longest_text(p, m.max_positions);
  m.embedding_width = p.optional<std::int64_t>("word_embed_proj_dim", m.hidden, 1, kMaxWidth, "width of the embedding table");
  read_heads(p, nulls, m);
  read_experts(p, m);
  if (!m.is_moe())
    m.intermediate = m.family == "opt" ? count(p, "ffn_dim", "width of the MLP") : count(p, "intermediate_size", "width of the MLP");
  m.gated_mlp = p.flag("gated_mlp", m.gated_mlp, "MLP of three matrices instead of two");
  m.tied_embeddings = p.flag("tie_word_embeddings", m.tied_embeddings, "output head shares the embedding table");
  if (p.has("attention_bias")) {
    const bool has_bias = p.flag("attention_bias", false, "biases in the attention projections");
    m.qkv_bias = m.qkv_bias || has_bias;
    m.dense_bias = m.dense_bias && has_bias;
  }
  read_window(p, nulls, m);
  read_dtypes(p, m);
  return m;
}

}  // namespace

std::int64_t bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
      return 32;
    case Dtype::kFp8:
    case Dtype::kInt8:
      return 8;
    default:
      return 16;
  }
}

const char* dtype_name(Dtype dtype) {
  return std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.second == dtype; })->first;
}

Dtype parse_dtype(const std::string& name, const std::string& place) {
  std::vector<std::string> known;
  for (const auto& [spelling, dtype] : kDtypes) {
    if (name == spelling) return dtype;
    known.emplace_back(spelling);
  }
  throw InputError(place + ": unknown type '" + name + "'" + suggestion(name, known));
}

ModelSpec load_model_spec(const std::string& name_or_path, const std::string& models_folder) {
  std::error_code ignored;
  std::string file = name_or_path;
  if (std::filesystem::is_directory(file, ignored)) file += "/config.json";
  file = find_spec_file(file, models_folder, "model");
  const std::shared_ptr<const ConfigFile> config = load_config(file);
  Params p(without_nulls(*config), std::make_shared<Choices>(), "model '" + file + "'");
  Params text = p.has("text_config") ? p.child("text_config", "model '" + file + "', text_config") : p;  // vision-language configs
  const YAML::Node inner = p.has("text_config") ? config->root["text_config"] : config->root;
  const auto is_null = [&](const char* key) { return inner[key].IsDefined() && inner[key].IsNull(); };
  const Nulls nulls{is_null("num_key_value_heads"), is_null("sliding_window")};
  const std::filesystem::path path(file);
  const std::string stem = path.stem().string();
  return read_spec(text, stem == "config" ? path.parent_path().filename().string() : stem, file, nulls);
}

Dtype compute_dtype(const ModelSpec& m) { return m.weight_bits == 8 && bits(m.dtype) > 8 ? Dtype::kFp8 : m.dtype; }

std::int64_t attention_parameters(const ModelSpec& m) {
  const std::int64_t q = m.q_heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  return m.hidden * (q + 2 * kv) + q * m.hidden + (m.qkv_bias ? q + 2 * kv : 0) + (m.dense_bias ? m.hidden : 0);
}

std::int64_t dense_mlp_parameters(const ModelSpec& m) {
  const std::int64_t matrices = m.gated_mlp ? 3 : 2;
  if (m.is_moe()) return m.hidden * m.experts + matrices * m.hidden * m.shared_intermediate + (m.shared_intermediate > 0 ? m.hidden : 0);
  return matrices * m.hidden * m.intermediate + (m.dense_bias ? m.intermediate + m.hidden : 0);
}

std::int64_t expert_parameters(const ModelSpec& m) { return m.experts * (m.gated_mlp ? 3 : 2) * m.hidden * m.moe_intermediate; }

std::int64_t layer_parameters(const ModelSpec& m) {
  const std::int64_t norms = 2 * m.hidden * (m.norm_bias ? 2 : 1) + (m.qk_norm ? 2 * m.head_dim : 0);
  return attention_parameters(m) + dense_mlp_parameters(m) + expert_parameters(m) + norms;
}

namespace {

std::int64_t embedding_parameters(const ModelSpec& m) {
  constexpr std::int64_t kOptPositionOffset = 2;  // OPT's position table has two extra rows
  const std::int64_t positions = m.learned_positions ? (m.max_positions + kOptPositionOffset) * m.hidden : 0;
  const std::int64_t projections = m.embedding_width != m.hidden ? 2 * m.embedding_width * m.hidden : 0;
  return m.vocabulary * m.embedding_width + positions + projections;
}

std::int64_t head_parameters(const ModelSpec& m) { return m.tied_embeddings ? 0 : m.vocabulary * m.embedding_width; }
std::int64_t final_norm_parameters(const ModelSpec& m) { return m.hidden * (m.norm_bias ? 2 : 1); }

}  // namespace

std::int64_t total_parameters(const ModelSpec& m) {
  return m.layers * layer_parameters(m) + embedding_parameters(m) + final_norm_parameters(m) + head_parameters(m);
}

std::int64_t weight_bytes(const ModelSpec& m, int tp, int pp, int ep) {
  const std::int64_t layers = ceil_div(m.layers, pp);
  const std::int64_t sharded = attention_parameters(m) + dense_mlp_parameters(m);
  const std::int64_t in_layers = layers * (ceil_div(sharded, tp) + ceil_div(expert_parameters(m), ep > 1 ? ep : tp));
  const std::int64_t outside = ceil_div(embedding_parameters(m), tp) + (pp == 1 ? ceil_div(head_parameters(m), tp) : 0);
  const std::int64_t norms = layers * (layer_parameters(m) - sharded - expert_parameters(m)) + final_norm_parameters(m);
  return ceil_div(in_layers * m.weight_bits, 8) + (outside + norms) * m.activation_bytes();
}

std::int64_t kv_bytes_per_token(const ModelSpec& m) { return 2 * m.layers * m.kv_heads * m.head_dim * bits(m.kv_dtype) / 8; }

}  // namespace kvlab
