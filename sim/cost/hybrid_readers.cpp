#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/cost/model_families.h"

namespace kvlab {

namespace {

using LinearRule = LinearAttention::Rule;

constexpr std::int64_t kFp32 = 4;

// Defaults of an index.
struct IndexSizes {
  std::int64_t heads = 0, dim = 0, tokens = 0;
};

// index_n_heads, index_head_dim and index_topk. Cached keys are fp8 with a 4-byte scale.
void read_sparse_index(Params& p, const IndexSizes& untold, ModelSpec& m) {
  SparseIndex& x = m.index;
  x.heads = p.optional<std::int64_t>("index_n_heads", untold.heads, 1, kMaxWidth, "heads of the index's queries");
  x.dim = p.optional<std::int64_t>("index_head_dim", untold.dim, 1, kMaxWidth, "channels of the index's keys");
  x.tokens = p.optional<std::int64_t>("index_topk", untold.tokens, 1, kMaxWidth, "tokens that attention sees");
  x.query_rank = m.latent.q_rank;
  constexpr std::int64_t kScale = 4;
  x.key_bytes = x.dim + kScale;
  m.some_window = x.tokens;
}

struct StateSpace {
  std::int64_t heads = 0, head_dim = 0, groups = 0, state = 0, conv_tokens = 0;
  bool conv_bias = true, has_norm = true;
};

// Mamba-2 (arXiv:2405.21060): one product for gate, x, B, C and a step per head; x, B and C pass a convolution.
LinearAttention mamba2(const StateSpace& s) {
  LinearAttention l{LinearRule::kStateSpace, s.groups, s.heads, s.state, s.head_dim, 0, s.conv_tokens};
  const std::int64_t inner = s.heads * s.head_dim, convolved = inner + 2 * s.groups * s.state;
  l.in_columns = inner + convolved + s.heads;
  l.vectors = 3 * s.heads + (s.has_norm ? inner : 0) + (s.conv_bias ? convolved : 0);
  return l;
}

void check_count(Params& p, const char* key, std::size_t found, std::int64_t layers) {
  if (found != static_cast<std::size_t>(layers))
    p.fail_at(key, fmt::format("'{}' has {} layers, num_hidden_layers is {}", key, found, layers));
}

// Per layer: M: Mamba-2, *: attention, -: MLP, E: experts.
std::string nemotron_layers(Params& p, const ModelSpec& m) {
  static const std::map<std::string, char> letters{
      {"mamba", 'M'}, {"linear_attention", 'M'}, {"attention", '*'}, {"full_attention", '*'}, {"mlp", '-'}, {"moe", 'E'}};
  std::string kinds = p.text("hybrid_override_pattern", "", "M: Mamba-2, *: attention, -: MLP, E: experts");
  const char* key = "hybrid_override_pattern";
  for (const char* const list : {"layers_block_type", "layer_types"})
    for (const std::string& word : p.words(list, "the kind of each layer")) {
      key = list;
      const auto letter = letters.find(word);
      if (letter == letters.end()) p.fail_at(list, fmt::format("'{}' has '{}'; priced: attention, mamba, mlp, moe", list, word));
      kinds += letter->second;
    }
  if (kinds.find_first_not_of("M*-E") != std::string::npos)
    p.fail_at(key, "'hybrid_override_pattern' has a letter that is none of M, *, -, E");
  check_count(p, key, kinds.size(), m.layers);
  return kinds;
}

void read_nemotron_experts(Params& p, ModelSpec& m) {
  m.experts = p.required<std::int64_t>("n_routed_experts", 1, kMaxWidth, "routed experts per layer");
  m.experts_per_token = p.required<std::int64_t>("num_experts_per_tok", 1, m.experts, "experts of a token");
  m.moe_intermediate = p.required<std::int64_t>("moe_intermediate_size", 1, kMaxWidth, "width of one expert");
  m.shared_intermediate = p.optional<std::int64_t>("moe_shared_expert_intermediate_size", 0, 0, kMaxWidth, "width of the shared expert");
  m.routed_hidden = p.optional<std::int64_t>("moe_latent_size", 0, 0, kMaxWidth, "width that experts read and write");
  m.router_bias = true;
}

void read_nemotron(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  const std::string kinds = nemotron_layers(p, m);
  m.head_dim = p.optional<std::int64_t>("attention_head_dim", m.head_dim, 1, kMaxWidth, "channels of one head");
  StateSpace s;
  s.heads = p.optional<std::int64_t>("mamba_num_heads", 128, 1, kMaxWidth, "heads of Mamba-2");
  s.head_dim = p.optional<std::int64_t>("mamba_head_dim", 64, 1, kMaxWidth, "channels of such a head");
  s.groups = p.optional<std::int64_t>("n_groups", 8, 1, kMaxWidth, "groups that share B and C");
  s.state = p.optional<std::int64_t>("ssm_state_size", 128, 1, kMaxWidth, "values of the state per channel");
  s.conv_tokens = p.optional<std::int64_t>("conv_kernel", 4, 1, 1 << 10, "length of the convolution");
  s.conv_bias = p.flag("use_conv_bias", true, "the convolution has a bias");
  m.linear = mamba2(s);
  if (p.text("mamba_ssm_cache_dtype", "float32", "type of the state") == "float32") m.linear.state_value_bytes = kFp32;
  if (kinds.find('E') != std::string::npos) read_nemotron_experts(p, m);
  for (const char kind : kinds) {
    m.attention_kinds.push_back(kind == 'M' ? AttentionKind::kLinear : kind == '*' ? AttentionKind::kFull : AttentionKind::kNone);
    m.layer_shapes.push_back({{m.q_heads, m.kv_heads, m.head_dim, m.head_dim}, kind == '-' ? m.intermediate : 0});
    m.expert_layers.push_back(kind == 'E');
  }
}

// From `first` on.
std::vector<bool> listed(Params& p, const char* key, std::int64_t first, std::int64_t layers) {
  std::vector<bool> flags(static_cast<std::size_t>(layers), false);
  for (const double number : p.numbers(key, static_cast<double>(first), static_cast<double>(layers - 1 + first), "numbers of layers"))
    flags[static_cast<std::size_t>(number) - static_cast<std::size_t>(first)] = true;
  return flags;
}

std::int64_t first_layer(const ModelSpec& m) { return m.family == "kimi_linear" ? 1 : 0; }

// Key Delta Attention: decay per channel (Kimi Linear, arXiv:2510.26692).
void read_key_delta(Params& p, ModelSpec& m) {
  Params l = p.child("linear_attn_config", "linear_attn_config");
  l.allow({"gate_lower_bound"});
  const auto heads = l.required<std::int64_t>("num_heads", 1, kMaxWidth, "heads of linear attention");
  const auto dim = l.required<std::int64_t>("head_dim", 1, kMaxWidth, "channels of such a head");
  const auto conv_tokens = l.optional<std::int64_t>("short_conv_kernel_size", 4, 1, 1 << 10, "length of the convolution");
  const bool has_full_gate = l.flag("use_full_rank_gate", false, "the output's gate is one product");  // else two of low rank
  const std::int64_t width = heads * dim;
  m.linear = {LinearRule::kDelta, heads, heads, dim, dim, kFp32, conv_tokens};
  m.linear.in_columns = 3 * width + heads + dim + (has_full_gate ? width : dim);
  m.linear.inner = dim * width * (has_full_gate ? 1 : 2);
  m.linear.vectors = width + heads + dim;
  const std::vector<bool> full = listed(l, "full_attn_layers", first_layer(m), m.layers),
                          linear = listed(l, "kda_layers", first_layer(m), m.layers);
  for (std::size_t i = 0; i < full.size(); ++i) {
    if (full[i] == linear[i])
      l.fail_at("kda_layers", fmt::format("layer {} is in {} of kda_layers and full_attn_layers", i + 1, full[i] ? "both" : "none"));
    m.attention_kinds.push_back(full[i] ? AttentionKind::kLatent : AttentionKind::kLinear);
  }
  l.reject_unread();
}

// Kimi Linear (arXiv:2510.26692) and Kimi K3.
void read_kimi_linear(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  read_key_delta(p, m);
  m.attention_gate = p.flag("mla_use_output_gate", false, "a gate for the output of latent attention");
  m.routed_hidden = p.optional<std::int64_t>("routed_expert_hidden_size", 0, 0, kMaxWidth, "width that experts read and write");
  if (m.routed_hidden > 0 && p.flag("latent_moe_use_norm", false, "a norm between")) m.layer_extras += m.routed_hidden;
  if (p.optional<std::int64_t>("attn_res_block_size", 0, 0, kMaxWidth, "layers whose outputs later layers weight") > 0)
    m.layer_extras += 4 * m.hidden;
}

// Residual streams and the products that mix them around each part (arXiv:2512.24880).
std::int64_t read_streams(Params& p, ModelSpec& m) {
  const auto n = p.optional<std::int64_t>("hc_mult", 4, 1, 64, "streams of the residual");
  m.layer_extras = 2 * ((2 + n) * n * (n * m.hidden + 1) + 3);
  m.embedding_extras = n * n * m.hidden + n + 1;
  return n;
}

// GLM-5.3-Flash: key delta attention, latent attention with multi-token index keys, residual streams.
void read_glm_next(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  read_key_delta(p, m);
  read_sparse_index(p, {32, 128, 2048}, m);
  const auto pool = p.optional<std::int64_t>("index_kpool", 1, 1, 1024, "tokens of one key of the index");
  const std::int64_t streams = read_streams(p, m);
  p.words("indexer_types", "which layers compute an index");
  for (const AttentionKind kind : m.attention_kinds) {
    const bool is_sparse = kind == AttentionKind::kLatent;
    m.sparse_layers.push_back(is_sparse);
    m.layer_shapes.push_back({{}, m.intermediate, is_sparse ? pool : 0});
  }
  m.remarks.emplace_back(
      fmt::format("the index's keys are taken to be pooled over {} tokens; traffic of {} residual streams is not counted", pool, streams));
}

void set_kinds(ModelSpec& m, const std::vector<bool>& is_full) {
  for (const bool full : is_full) m.attention_kinds.push_back(full ? AttentionKind::kFull : AttentionKind::kLinear);
}

std::vector<bool> full_layers(Params& p, const ModelSpec& m) {
  std::vector<bool> full;
  for (const std::string& type : p.words("layer_types", "the mixer of each layer"))
    full.push_back(type == "attention" || type == "full_attention");
  if (full.empty() && p.has("full_attn_idxs")) full = listed(p, "full_attn_idxs", 0, m.layers);
  if (full.empty()) p.fail_at("model_type", "'layer_types' is missing: the mixer of each layer");
  check_count(p, "layer_types", full.size(), m.layers);
  return full;
}

// Granite 4.0 hybrid: Mamba-2 or attention, then experts with a shared MLP, or only that MLP.
void read_granite(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  StateSpace s;
  s.heads = p.optional<std::int64_t>("mamba_n_heads", 128, 1, kMaxWidth, "heads of Mamba-2");
  const auto expand = p.optional<std::int64_t>("mamba_expand", 2, 1, 64, "width of Mamba-2 over hidden_size");
  s.head_dim = expand * m.hidden / s.heads;
  if (p.inline_text("mamba_d_head", "auto") != "auto")
    s.head_dim = p.required<std::int64_t>("mamba_d_head", 1, kMaxWidth, "channels of such a head");
  s.groups = p.optional<std::int64_t>("mamba_n_groups", 1, 1, kMaxWidth, "groups that share B and C");
  s.state = p.optional<std::int64_t>("mamba_d_state", 256, 1, kMaxWidth, "values of the state per channel");
  s.conv_tokens = p.optional<std::int64_t>("mamba_d_conv", 4, 1, 1 << 10, "length of the convolution");
  s.conv_bias = p.flag("mamba_conv_bias", true, "the convolution has a bias");
  m.linear = mamba2(s);
  set_kinds(m, full_layers(p, m));
  if (!m.is_moe()) m.intermediate = p.optional<std::int64_t>("shared_intermediate_size", m.intermediate, 1, kMaxWidth, "width of the MLP");
}

// LFM2: a short convolution with two gates, or attention. With block_auto_adjust_ff_dim, MLP width follows Llama's rule.
void read_short_conv(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  const auto tokens = p.optional<std::int64_t>("conv_L_cache", 3, 1, 1 << 10, "length of the convolution");
  const bool has_bias = p.flag("conv_bias", false, "the convolution and its products have biases");
  m.linear = {LinearRule::kConvolution, 0, 1, 0, m.hidden, 0, tokens};
  m.linear.in_columns = 3 * m.hidden;
  m.linear.vectors = has_bias ? 5 * m.hidden : 0;
  set_kinds(m, full_layers(p, m));
  if (m.is_moe() || !p.flag("block_auto_adjust_ff_dim", true, "the MLP's width is adjusted")) return;
  const auto multiple = p.optional<std::int64_t>("block_multiple_of", 256, 1, kMaxWidth, "what the width is a multiple of");
  const auto factor = p.optional<double>("block_ffn_dim_multiplier", 1, 0.01, 100, "factor of the width");
  const std::int64_t two_thirds = 2 * m.intermediate / 3;
  const auto width = static_cast<std::int64_t>(factor * static_cast<double>(two_thirds));
  m.intermediate = ceil_div(width, multiple) * multiple;
}

// Jamba (arXiv:2403.19887): Mamba with norms of its step, B and C; attention and experts every so many layers.
void read_jamba(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  const auto expand = p.optional<std::int64_t>("mamba_expand", 2, 1, 64, "width of Mamba over hidden_size"),
             state = p.optional<std::int64_t>("mamba_d_state", 16, 1, kMaxWidth, "values of the state per channel"),
             conv = p.optional<std::int64_t>("mamba_d_conv", 4, 1, 1 << 10, "length of the convolution"),
             rank = p.optional<std::int64_t>("mamba_dt_rank", ceil_div(m.hidden, std::int64_t{16}), 1, kMaxWidth, "rank of the step"),
             every = p.optional<std::int64_t>("attn_layer_period", 8, 1, kMaxWidth, "every so many layers one has attention"),
             first = p.optional<std::int64_t>("attn_layer_offset", 4, 0, kMaxWidth, "the first of them"),
             routed_every = p.optional<std::int64_t>("expert_layer_period", 2, 1, kMaxWidth, "every so many layers one has experts"),
             routed_first = p.optional<std::int64_t>("expert_layer_offset", 1, 0, kMaxWidth, "the first of them");
  const std::int64_t inner = expand * m.hidden;
  m.linear = {LinearRule::kStateSpace, 0, inner, state, 1, 0, conv};
  m.linear.in_columns = 2 * inner;
  m.linear.inner = inner * (rank + 2 * state) + rank * inner;
  m.linear.vectors = inner * (state + 2) + rank + 2 * state + (p.flag("mamba_conv_bias", true, "the convolution has a bias") ? inner : 0);
  std::vector<bool> full;
  m.expert_layers.clear();
  for (std::int64_t i = 0; i < m.layers; ++i) {
    full.push_back(i % every == first);
    m.expert_layers.push_back(i % routed_every == routed_first);
  }
  set_kinds(m, full);
  m.intermediate = m.moe_intermediate > 0 ? m.moe_intermediate : m.intermediate;
}

// Other layers use the previous index (GLM-5.2).
std::vector<bool> layers_with_index(Params& p, std::int64_t layers) {
  std::vector<bool> own;
  for (const std::string& type : p.words("indexer_types", "which layers compute an index")) own.push_back(type == "full");
  if (p.has("index_topk_pattern"))
    for (const char letter : p.text("index_topk_pattern", "F: computes an index, S: shares it")) own.push_back(letter == 'F');
  if (!own.empty()) {
    if (own.size() < static_cast<std::size_t>(layers))
      p.fail_at(p.has("indexer_types") ? "indexer_types" : "index_topk_pattern",
                fmt::format("expected one entry for each of {} layers", layers));
    own.resize(static_cast<std::size_t>(layers));
    return own;
  }
  const auto every = p.optional<std::int64_t>("index_topk_freq", 1, 1, kMaxWidth, "every so many layers one computes an index");
  const auto offset = p.optional<std::int64_t>("index_skip_topk_offset", 2, 0, kMaxWidth, "layers before the first that shares one");
  for (std::int64_t i = 0; i < layers; ++i) own.push_back(std::max<std::int64_t>(i - offset + 1, 0) % every == 0);
  return own;
}

// DeepSeek-V3.2 (arXiv:2512.02556), GLM-5.
void read_sparse_latent(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  read_sparse_index(p, {64, 128, 2048}, m);
  m.sparse_layers.assign(static_cast<std::size_t>(m.layers), true);
  m.index_layers = layers_with_index(p, m.layers);
}

// Tokens per cached vector; 0: only the window. Further entries are of multi-token prediction.
std::vector<std::int64_t> entry_tokens(Params& p, const ModelSpec& m) {
  std::vector<std::int64_t> tokens;
  for (const double ratio : p.numbers("compress_ratios", 0, 4096, "tokens of one cached vector, of each layer"))
    tokens.push_back(static_cast<std::int64_t>(ratio));
  for (const std::string& type : p.words("layer_types", "of each layer its attention"))
    tokens.push_back(type == "compressed_sparse_attention" ? 4 : type == "heavily_compressed_attention" ? 128 : 0);
  if (static_cast<std::int64_t>(tokens.size()) < m.layers)
    p.fail_at(p.has("compress_ratios") ? "compress_ratios" : "num_hidden_layers",
              fmt::format("expected compress_ratios with an entry for each of {} layers", m.layers));
  tokens.resize(static_cast<std::size_t>(m.layers));
  return tokens;
}

void read_compressed(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  constexpr std::int64_t kIndexed = 4;  // CSA of DeepSeek-V4; layers of 128 tokens per vector see all
  CompressedAttention& c = m.compressed;
  c.dim = m.head_dim;
  c.q_rank = p.optional<std::int64_t>("q_lora_rank", 1024, 1, kMaxWidth, "rank of queries");
  c.out_groups = p.optional<std::int64_t>("o_groups", 8, 1, 1024, "groups of the output projection");
  c.out_rank = p.optional<std::int64_t>("o_lora_rank", 1024, 1, kMaxWidth, "rank of each group");
  c.window = p.optional<std::int64_t>("sliding_window", 128, 1, kMaxWidth, "tokens that each query sees one by one");
  c.indexed = kIndexed;
  p.optional<std::int64_t>("num_hash_layers", 3, 0, 10'000, "layers that choose experts by the token's id");
  m.sliding_window = 0;
  m.attention_kinds.clear();
  for (const std::int64_t tokens : entry_tokens(p, m)) {
    m.layer_shapes.push_back({{}, m.intermediate, tokens});
    m.sparse_layers.push_back(tokens == kIndexed);
  }
  read_sparse_index(p, {64, 128, 512}, m);
  m.index.query_rank = c.q_rank;
  m.some_window = m.index.tokens * kIndexed;
  m.remarks.emplace_back(fmt::format("{} residual streams: the weights that mix them are counted, and their products; their traffic is not",
                                     read_streams(p, m)));
  m.remarks.emplace_back(
      fmt::format("KV per token is that of long texts: each layer also keeps its last {} tokens, which is not counted", c.window));
}

// MiniMax-M3: blocks of tokens, chosen for K and V per head.
void read_sparse_blocks(Params& p, const ModelFile& /*file*/, ModelSpec& m) {
  m.intermediate = p.optional<std::int64_t>("dense_intermediate_size", 12288, 1, kMaxWidth, "width of the MLP of dense layers");
  if (!p.has("sparse_attention_config")) return;
  Params s = p.child("sparse_attention_config", "sparse_attention_config");
  s.allow({"sparse_disable_index_value", "sparse_score_type", "sparse_init_block", "sparse_local_block"});
  const bool is_on = s.flag("use_sparse_attention", true, "attention sees chosen blocks");
  const auto blocks = s.optional<std::int64_t>("sparse_topk_blocks", 16, 1, kMaxWidth, "blocks that attention sees"),
             block = s.optional<std::int64_t>("sparse_block_size", 128, 1, kMaxWidth, "tokens of a block");
  SparseIndex index;
  index.heads = s.optional<std::int64_t>("sparse_num_index_heads", 4, 1, 1024, "heads of the index's queries");
  index.dim = s.optional<std::int64_t>("sparse_index_dim", 128, 1, kMaxWidth, "channels of the index's keys");
  index.tokens = blocks * block;
  for (const std::string& flag : s.words("sparse_attention_freq", "which layers are sparse")) m.sparse_layers.push_back(flag != "0");
  s.reject_unread();
  if (!is_on) return m.sparse_layers.clear();
  m.sparse_layers.resize(static_cast<std::size_t>(m.layers), true);
  m.index = index;
  m.some_window = index.tokens;
}

}  // namespace

std::vector<NamedReader> hybrid_readers() {
  return {{"indexed_latent", read_sparse_latent}, {"compressed", read_compressed},   {"sparse_blocks", read_sparse_blocks},
          {"nemotron_h", read_nemotron},          {"kimi_linear", read_kimi_linear}, {"glm_next", read_glm_next},
          {"granite_hybrid", read_granite},       {"short_conv", read_short_conv},   {"jamba", read_jamba}};
}

}  // namespace kvlab
