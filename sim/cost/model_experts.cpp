#include <algorithm>
#include <cmath>

#include "sim/cost/model_attention.h"

namespace kvlab {

namespace {

// The first of several synonymous keys, or `fallback`.
std::int64_t any_of(Params& p, std::initializer_list<const char*> keys, std::int64_t fallback, const char* meaning) {
  for (const char* key : keys)
    if (p.has(key)) return p.required<std::int64_t>(key, 0, kMaxWidth, meaning);
  return fallback;
}

// A list of layer numbers as flags.
std::vector<bool> flags_of(Params& p, const char* key, std::int64_t layers, const char* meaning) {
  std::vector<bool> flags(static_cast<std::size_t>(layers), false);
  for (const double number : p.numbers(key, 0, static_cast<double>(layers - 1), meaning)) {
    if (number != std::floor(number)) p.fail_at(key, std::string("'") + key + "': expected numbers of layers");
    flags[static_cast<std::size_t>(number)] = true;
  }
  return flags;
}

// Every decoder_sparse_step-th layer, except mlp_only_layers.
std::vector<bool> sparse_step_layers(Params& p, std::int64_t layers) {
  const auto step = p.optional<std::int64_t>("decoder_sparse_step", 1, 1, kMaxWidth, "every so many layers one has experts");
  std::vector<bool> routed = flags_of(p, "mlp_only_layers", layers, "layers without experts");
  for (std::size_t l = 0; l < routed.size(); ++l) routed[l] = !routed[l] && static_cast<std::int64_t>(l + 1) % step == 0;
  return routed;
}

// A word per layer, one of which means dense. Entries for multi-token prediction may follow.
std::vector<bool> named_layers(Params& p, const char* key, const std::string& dense, std::int64_t layers) {
  std::vector<bool> routed;
  for (const std::string& word : p.words(key, "which layers have experts")) routed.push_back(word != dense);
  if (static_cast<std::int64_t>(routed.size()) < layers)
    p.fail_at(key, std::string("'") + key + "': expected one entry for each of " + std::to_string(layers) + " layers");
  routed.resize(static_cast<std::size_t>(layers));
  return routed;
}

std::vector<bool> layers_after_dense(Params& p, const Family& family, std::int64_t layers) {
  if (p.has("mlp_layer_types")) return named_layers(p, "mlp_layer_types", "dense", layers);
  if (p.inline_text("moe_layer_freq", "").starts_with("[")) return named_layers(p, "moe_layer_freq", "0", layers);
  const auto first = p.optional<std::int64_t>("first_k_dense_replace", family.experts.first_dense, 0, kMaxWidth, "dense layers before");
  const auto every = p.optional<std::int64_t>("moe_layer_freq", 1, 1, kMaxWidth, "every so many layers one has experts");
  std::vector<bool> routed;
  for (std::int64_t l = 0; l < layers; ++l) routed.push_back(l >= first && l % every == 0);
  return routed;
}

std::vector<bool> interleaved_layers(Params& p, std::int64_t layers) {
  const auto step = p.optional<std::int64_t>("interleave_moe_layer_step", 1, 1, kMaxWidth, "every so many layers one has experts");
  if (p.has("moe_layers")) return flags_of(p, "moe_layers", layers, "layers with experts");
  std::vector<bool> routed;
  for (std::int64_t l = 0; l < layers; ++l) routed.push_back((l + 1) % step == 0);
  return routed;
}

std::vector<bool> layers_with_experts(Params& p, const Family& family, std::int64_t layers) {
  switch (family.experts.layers) {
    case ExpertLayers::kSparseStep:
      return sparse_step_layers(p, layers);
    case ExpertLayers::kFirstDense:
      return layers_after_dense(p, family, layers);
    case ExpertLayers::kInterleaved:
      return interleaved_layers(p, layers);
    default:
      return std::vector<bool>(static_cast<std::size_t>(layers), true);
  }
}

std::int64_t shared_width(Params& p, const Family& family, const ModelSpec& m) {
  const FamilyExperts& e = family.experts;
  if (e.layers == ExpertLayers::kInterleaved) return m.moe_intermediate;
  if (e.layers == ExpertLayers::kFirstDense)
    return m.moe_intermediate * any_of(p, {"n_shared_experts", "num_shared_experts"}, e.shared_experts, "experts every token uses");
  return any_of(p, {"shared_expert_intermediate_size", "shared_intermediate_size"}, e.shared_width, "width of the expert every token uses");
}

}  // namespace

void read_mlps(Params& p, const Family& family, ModelSpec& m) {
  const FamilyExperts& e = family.experts;
  const char* const dense_key = family.name == "opt" ? "ffn_dim" : "intermediate_size";
  const auto dense_width = [&] { return read_size(p, dense_key, family.sizes.intermediate, kMaxWidth, "width of the MLP"); };
  if (e.layers != ExpertLayers::kNone)
    m.experts = any_of(p, {"num_local_experts", "num_experts", "n_routed_experts"}, e.experts, "routed experts per layer");
  std::vector<bool> routed;
  if (m.is_moe()) routed = layers_with_experts(p, family, m.layers);
  const std::int64_t num_routed = std::count(routed.begin(), routed.end(), true);
  if (num_routed == 0) {
    m.experts = 0;
    m.intermediate = dense_width();
    return;
  }
  const char* const per_token = p.has("num_experts_per_token") ? "num_experts_per_token" : "num_experts_per_tok";
  m.experts_per_token = e.per_token > 0 ? p.optional<std::int64_t>(per_token, e.per_token, 1, m.experts, "experts of a token")
                                        : p.required<std::int64_t>(per_token, 1, m.experts, "experts each token is sent to");
  m.moe_intermediate = any_of(p, {"moe_intermediate_size"}, e.width, "width of one expert");
  if (m.moe_intermediate == 0) m.moe_intermediate = dense_width();  // Mixtral
  m.shared_intermediate = shared_width(p, family, m);
  m.shared_gate = m.shared_intermediate > 0 && (e.shared_gate || family.name.empty());
  m.expert_bias = e.has_bias;
  m.router_bias = family.router_bias;
  if (num_routed == m.layers) return;
  constexpr std::int64_t kLlama4Dense = 16384;
  const bool is_interleaved = e.layers == ExpertLayers::kInterleaved;
  m.intermediate =
      is_interleaved ? read_size(p, "intermediate_size_mlp", kLlama4Dense, kMaxWidth, "width of the dense MLP") : dense_width();
  m.expert_layers = std::move(routed);
}

}  // namespace kvlab
