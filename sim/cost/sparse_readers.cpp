#include <fmt/format.h>

#include <algorithm>

#include "base/config/params.h"
#include "sim/cost/model_families.h"
#include "sim/cost/model_file.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

namespace {

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

// Residual streams and the products that mix them around each part (arXiv:2512.24880).
void read_hyper_connections(Params& p, ModelSpec& m) {
  const auto n = p.optional<std::int64_t>("hc_mult", 4, 1, 64, "streams of the residual");
  m.layer_extras = 2 * ((2 + n) * n * (n * m.hidden + 1) + 3);
  m.embedding_extras = n * n * m.hidden + n + 1;
  m.remarks.emplace_back(
      fmt::format("{} residual streams: the weights that mix them are counted, and their products; their traffic is not", n));
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
  read_hyper_connections(p, m);
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

std::vector<NamedReader> sparse_readers() {
  return {{"indexed_latent", read_sparse_latent}, {"compressed", read_compressed}, {"sparse_blocks", read_sparse_blocks}};
}

}  // namespace kvlab
