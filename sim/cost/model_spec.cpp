#include "sim/cost/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/file_memo.h"
#include "base/hugging_face.h"
#include "base/text.h"
#include "serving/attention_windows.h"
#include "sim/cost/model_families.h"
#include "sim/cost/model_file.h"
#include "sim/cost/quantization_schemes.h"

namespace kvlab {

namespace {

constexpr std::array kDtypes{std::pair{"float16", Dtype::kFp16}, std::pair{"bfloat16", Dtype::kBf16}, std::pair{"float32", Dtype::kFp32},
                             std::pair{"fp8", Dtype::kFp8}, std::pair{"int8", Dtype::kInt8}};

bool has_key(const Family& family, std::string_view key) {
  return std::find(family.keys.begin(), family.keys.end(), key) != family.keys.end();
}

void read_dtypes(Params& p, ModelSpec& m) {
  const std::string key = p.has("dtype") ? "dtype" : "torch_dtype";  // as transformers
  if (p.has("dtype") && p.has("torch_dtype") && p.inline_text("dtype", "") != p.inline_text("torch_dtype", ""))
    m.remarks.push_back(fmt::format("'dtype' = {} is taken, as transformers does, not 'torch_dtype' = {}", p.inline_text("dtype", ""),
                                    p.inline_text("torch_dtype", "")));
  const std::string named = p.text(key, "bfloat16", "type of weights and activations");
  m.dtype = parse_dtype(named, p.owner() + ": '" + key + "'");
  m.kv_dtype =
      parse_dtype(p.text("kv_cache_dtype", dtype_name(m.dtype), "type of cached keys and values"), p.owner() + ": 'kv_cache_dtype'");
  m.attention_weights = m.mlp_weights = m.expert_weights = m.head_weights = WeightFormat::of(m.dtype);
}

void read_weight_formats(Params& p, const ModelFile& file, ModelSpec& m) {
  const bool kv_is_given = p.has("kv_cache_dtype");
  if (p.has("quantization_config")) {
    Params q = p.child("quantization_config", "quantization_config");
    read_quantization(q, kv_is_given, m);
  } else if (file.quantization != nullptr) {
    Params q(file.quantization, std::make_shared<Choices>(), "quantization '" + file.quantization->name + "'");
    read_quantization(q, kv_is_given, m);
  }
}

void read_biases(Params& p, const Family& family, ModelSpec& m) {
  m.qkv_bias = family.qkv_bias, m.o_bias = family.o_bias, m.mlp_bias = family.mlp_bias;
  const auto flag = [&](const char* key, bool fallback) {
    return has_key(family, key) ? p.flag(key, fallback, "biases of linear layers") : fallback;
  };
  for (const char* key : {"attention_bias", "qkv_bias", "use_bias", "bias"}) {
    if (!p.has(key) || !has_key(family, key)) continue;
    m.qkv_bias = flag(key, false);
    m.o_bias = m.qkv_bias && family.bias_reaches_o && std::string_view(key) != "qkv_bias";
    if (std::string_view(key) == "use_bias") m.mlp_bias = m.qkv_bias;
  }
  m.o_bias = flag("attention_out_bias", m.o_bias);
  m.mlp_bias = flag("mlp_bias", m.mlp_bias);
  m.has_sinks = family.has_sinks;
}

void read_norms(Params& p, const Family& family, ModelSpec& m) {
  m.norms = family.norms;
  m.norm_bias = family.norm_bias;
  m.norm_parameters = family.norm_has_weights ? m.hidden * (m.norm_bias ? 2 : 1) : 0;
  const bool is_default = family.qk_norm == QkNorm::kWithoutWeights || !has_key(family, "use_qk_norm");
  const bool is_on = has_key(family, "use_qk_norm") ? p.flag("use_qk_norm", is_default, "norm of each query and key head") : is_default;
  const QkNorm norm = is_on ? family.qk_norm : QkNorm::kNone;
  m.qk_norm = norm != QkNorm::kNone;
  if (norm == QkNorm::kPerHead) m.qk_norm_parameters = 2 * m.head_dim;
  if (norm == QkNorm::kWide) m.qk_norm_parameters = (m.q_heads + m.kv_heads) * m.head_dim;
}

// Unknown or without a factor: ignored, costs nothing.
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

// Checkpoints for other tasks have no head, or another one.
void check_architectures(Params& p) {
  for (const std::string& name : p.words("architectures", "model classes")) {
    for (const char* end :
         {"ForSequenceClassification", "ForTokenClassification", "ForMaskedLM", "ForQuestionAnswering", "RewardModel", "Model"})
      if (name.ends_with(end) && !name.ends_with("LMHeadModel"))
        p.fail_at("architectures",
                  "'architectures' has " + name + ", which generates no text; a decoder-only model with its head is expected");
  }
}

const Family& family_of(Params& p, const ModelFile& file) {
  if (p.has("decoder_layers") && p.has("encoder_layers")) p.fail_at("encoder_layers", "encoder-decoder models are not priced");
  const Family* family = file.family.empty() ? &generic_family() : find_family(file.family);
  if (family != nullptr) {
    check_layer_types(p, *family);
    return *family;
  }
  const std::string why = why_not_priced(file.family);
  p.fail_at("model_type",
            "model_type '" + file.family + "' is not priced" + (why.empty() ? "; priced: " + join(family_names(), ", ") : ": " + why));
}

void read_lengths(Params& p, const Family& family, ModelSpec& m) {
  m.max_positions = p.optional<std::int64_t>("max_position_embeddings", family.sizes.positions, 0, 1 << 30, "longest sequence");
  const bool is_stretched = family.name == "gemma3_text";  // already scaled
  m.max_tokens = is_stretched ? m.max_positions : read_longest_text(p, m.max_positions);
}

// Nemotron-H may only list them.
std::int64_t read_num_layers(Params& p, const Family& family) {
  const char* const key = "layers_block_type";
  if (p.has(key) && has_key(family, key)) return static_cast<std::int64_t>(p.words(key, "the kind of each layer").size());
  return read_size(p, "num_hidden_layers", family.sizes.layers, 10'000, "layers");
}

bool has_expert_scheme(Params& p) {
  return p.has("quantization_config") && p.child("quantization_config", "quantization_config").has("moe_quant_algo");
}

// DeepSeek-V4: FP4 experts, 8-bit scale per 32 weights, fp8 activations.
void read_expert_type(Params& p, ModelSpec& m) {
  if (!p.has("expert_dtype") || has_expert_scheme(p)) return;
  if (p.choice("expert_dtype", {"fp4", "fp8"}, 0, "type of the experts' weights") != 0) return;
  m.expert_weights = WeightFormat::of(Dtype::kFp8);
  m.expert_weights.bits = 4 + 8.0 / 32;
}

ModelSpec read_spec(Params& p, const std::string& name, const std::string& path, const ModelFile& file) {
  const Family& family = family_of(p, file);
  check_model_keys(p, family);
  check_architectures(p);
  ModelSpec m;
  m.name = name;
  m.file = path;
  m.family = file.family.empty() ? "llama" : file.family;
  m.layers = read_num_layers(p, family);
  m.hidden = read_size(p, "hidden_size", family.sizes.hidden, kMaxWidth, "width of the residual stream");
  m.vocabulary = read_size(p, "vocab_size", family.sizes.vocabulary, 1 << 24, "tokens in the vocabulary");
  read_lengths(p, family, m);
  m.embedding_width = p.optional<std::int64_t>("word_embed_proj_dim", m.hidden, 1, kMaxWidth, "width of the embedding table");
  read_attention(p, family, file, m);
  m.gated_mlp = p.flag("gated_mlp", family.gated_mlp, "MLP of three matrices instead of two");
  m.learned_positions = family.learned_positions;
  read_mlps(p, family, m);
  m.tied_embeddings = p.flag("tie_word_embeddings", family.tied_embeddings, "output head shares the embedding table");
  read_biases(p, family, m);
  read_norms(p, family, m);
  read_dtypes(p, m);
  m.layer_extras = family.layer_extras;
  if (family.own != nullptr) family.own(p, file, m);
  read_weight_formats(p, file, m);
  read_expert_type(p, m);
  if (family.name == "llama4_text")
    m.remarks.emplace_back("attention within chunks (attention_chunk_size) is priced as attention to all tokens");
  if (file.is_multimodal) m.remarks.emplace_back("the text model alone: weights and work of vision or audio parts are not counted");
  return m;
}

}  // namespace

std::int64_t bits(Dtype dtype) {
  constexpr std::array<std::int64_t, kNumDtypes> kBits{16, 16, 32, 8, 8, 4};
  return kBits[static_cast<std::size_t>(dtype)];
}

const char* dtype_name(Dtype dtype) {
  if (dtype == Dtype::kFp4) return "fp4";
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

namespace {

ModelSpec read_found(const FoundModel& found, const std::string& name_or_path, const std::string& scheme) {
  const std::string& file = found.file;
  ModelFile read = load_model_file(file);
  std::optional<WeightScheme> weights;
  if (!found.scheme.empty()) weights = find_weight_scheme(found.scheme);
  if (scheme != "none" && scheme != "auto") {
    const WeightScheme asked = find_weight_scheme(scheme);
    if (weights && weights->name != asked.name)
      throw InputError(fmt::format("'quantization' = {}: {} has weights in {} already", scheme, name_or_path, weights->name));
    weights = asked;
  }
  if (weights) set_quantization(read, weights->name, weights->config, !found.scheme.empty());
  Params p(read.config, std::make_shared<Choices>(), "model '" + file + "'");
  const std::filesystem::path path(file);
  const std::string stem = path.stem().string();
  ModelSpec m = read_spec(p, stem == "config" ? model_title(path.parent_path()) : stem, file, read);
  if (weights)
    m.remarks.push_back(
        fmt::format("weights in {}: {}; embedding, head, norms and routers keep {}", weights->name, weights->means, dtype_name(m.dtype)));
  return m;
}

}  // namespace

ModelSpec load_model_spec(const std::string& name_or_path, const std::string& models_folder, const std::string& scheme) {
  static FileMemo<ModelSpec> known;
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(name_or_path, ignored);
  const FoundModel found = find_model_file(is_folder ? name_or_path + "/config.json" : name_or_path, models_folder);
  return *known.get(join({found.file, found.scheme, name_or_path, scheme, profiles_folder()}, "\n"), [&](SeenFiles& seen) {
    seen.add(found.file);
    for (const auto& [file, method] : quantization_files(found.file)) seen.add(file.string());
    seen.add(shipped_profiles("model_types.yaml"));
    return read_found(found, name_or_path, scheme);
  });
}

WeightFormat WeightFormat::of(Dtype dtype) {
  WeightFormat format;
  format.bits = static_cast<double>(kvlab::bits(dtype));
  format.share[static_cast<std::size_t>(dtype)] = 1;
  return format;
}

Dtype compute_dtype(const ModelSpec& m) {
  for (const Dtype dtype : {Dtype::kFp4, Dtype::kFp8, Dtype::kInt8})
    for (const WeightFormat* format : {&m.attention_weights, &m.mlp_weights, &m.expert_weights})
      if (format->share[static_cast<std::size_t>(dtype)] > 0) return dtype;
  return m.dtype;
}

}  // namespace kvlab
