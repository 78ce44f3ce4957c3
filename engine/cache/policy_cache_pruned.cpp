// Prompts that lose tokens between layers, or are replaced by some of their tokens.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/cache/policy_cache_group.h"

namespace kvlab {

namespace {

// Runs the first layers and collects a rewriter's vectors, token by token.
class ScanHost final : public AttentionHost {
 public:
  ScanHost(PolicyCache& cache, std::vector<PromptRewriter::Vectors> reads, std::int32_t last_layer)
      : cache_(cache), reads_(std::move(reads)), last_layer_(last_layer), vectors_(reads_.size()) {}

  void begin(std::int32_t tokens) { tokens_ = tokens; }
  void before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) override {
    add(layer, true, q, k, nullptr);
    if (layer < last_layer_) cache_.before_rope(layer, hidden, q, k);
  }
  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override {
    add(layer, false, q, k, v);
    if (layer < last_layer_) cache_.attend(layer, q, k, v, out);
  }
  [[nodiscard]] std::vector<const float*> vectors() const {
    std::vector<const float*> all;
    for (const std::vector<float>& some : vectors_) all.push_back(some.data());
    return all;
  }

 private:
  void add(std::int32_t layer, bool before_rope, const float* q, const float* k, const float* v) {
    using Kind = PromptRewriter::Vectors::Kind;
    for (std::size_t i = 0; i < reads_.size(); ++i) {
      const PromptRewriter::Vectors& read = reads_[i];
      if (read.layer != layer || read.before_rope != before_rope) continue;
      const float* const from = read.kind == Kind::kQueries ? q : read.kind == Kind::kKeys ? k : v;
      const std::int64_t heads = read.kind == Kind::kQueries ? cache_.shape().q_heads : cache_.shape().kv_heads,
                         d = cache_.shape().head_dim;
      const std::int64_t first = std::max(0, read.head), end = read.head < 0 ? heads : read.head + 1;
      for (std::int64_t t = 0; t < tokens_; ++t)
        vectors_[i].insert(vectors_[i].end(), from + (t * heads + first) * d, from + (t * heads + end) * d);
    }
  }

  PolicyCache& cache_;
  std::vector<PromptRewriter::Vectors> reads_;
  std::int32_t last_layer_, tokens_ = 0;
  std::vector<std::vector<float>> vectors_;
};

void scan_prompt(const Transformer& model, PolicyCache& cache, EngineSequence& sequence, const PromptRewriter::Scan& scan, ScanHost& host) {
  const std::span<const std::int32_t> ids = sequence.ids;
  cache.start(sequence);
  while (sequence.seen_tokens < sequence.prompt_tokens) {
    const std::int32_t begin = sequence.seen_tokens, tokens = std::min(scan.chunk_tokens, sequence.prompt_tokens - begin);
    const std::vector<std::int32_t> positions = consecutive(begin, tokens);
    const StepPiece piece{&sequence, tokens};
    cache.begin_step({&piece, 1});
    host.begin(tokens);
    model.scan({ids.subspan(place(begin), place(tokens)), positions}, host, scan.layers);
    cache.end_step({});
  }
  cache.release(sequence);
}

}  // namespace

void refuse_pruning(const Recipe& recipe, const ModelConfig& model) {
  for (std::int32_t l = 0; recipe.prunes() && l < model.layers; ++l)
    if (model.window(l) > 0)
      throw InputError(
          fmt::format("recipe '{}' cannot run: prompts cannot be {}, because layer {} of the model attends to a window of its own; write "
                      "'{}: none'",
                      recipe.name, recipe.rewrites() ? "rewritten" : "pruned", l, recipe.pruning_part()));
}

// Rows give back pages that stay empty.
void PolicyCache::place_pruned(Group& g, std::size_t s, std::int32_t layer) {
  KvStore& store = g.layers[place(layer)];
  const std::int32_t first_row = static_cast<std::int32_t>(s) * shape_.kv_heads;
  for (std::int32_t row = first_row; row < first_row + shape_.kv_heads; ++row) store.shrink(row, store.len(row));
  const KvRows kv = store.rows();
  for (std::int32_t row = first_row; row < first_row + shape_.kv_heads; ++row)
    for (std::int32_t i = 0; i < g.rows[s]; ++i) kv.position[kv.slot(row, i)] = g.positions[s][place(i)];
}

std::vector<PolicyCache::Piece> PolicyCache::pieces_in_order() const {
  std::vector<Piece> pieces;
  for (const auto& g : groups_)
    for (std::size_t s = 0; s < g->seqs.size(); ++s) pieces.push_back({g.get(), s});
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.group->first[a.s] < b.group->first[b.s]; });
  return pieces;
}

// Appends a sequence's rows at places `left` (empty: all), and updates its first row.
void PolicyCache::take_rows(const Piece& piece, std::span<const std::int32_t> left, std::vector<std::int32_t>& rows) {
  Group& g = *piece.group;
  const auto first = static_cast<std::int32_t>(std::exchange(g.first[piece.s], std::ssize(rows)));
  for (std::int32_t i = 0; left.empty() && i < g.rows[piece.s]; ++i) rows.push_back(first + i);
  for (const std::int32_t i : left) rows.push_back(first + i);
  if (!left.empty()) g.rows[piece.s] = static_cast<std::int32_t>(left.size());
}

std::span<const std::int32_t> PolicyCache::going_on(std::int32_t) {
  going_on_.clear();
  const auto loses = [](const auto& g) {
    return std::any_of(g->going_on.begin(), g->going_on.end(), [](const auto& left) { return !left.empty(); });
  };
  if (!policy_.prunes() || std::none_of(groups_.begin(), groups_.end(), loses)) return {};
  for (const Piece& piece : pieces_in_order()) {
    const std::vector<std::int32_t>& left = piece.group->going_on[piece.s];
    take_rows(piece, left, going_on_);
    if (left.empty()) continue;
    std::vector<std::int32_t>& positions = piece.group->positions[piece.s];
    for (std::size_t i = 0; i < left.size() && !positions.empty(); ++i) positions[i] = positions[place(left[i])];
    if (positions.empty()) positions = left;
    positions.resize(left.size());
  }
  return going_on_;
}

// Places in the prompt, ascending.
std::vector<std::int32_t> PolicyCache::tokens_that_stay(const SeqStep& seq, std::span<const std::int32_t> ids) {
  PromptRewriter& rewriter = *policy_.rewriter();
  const PromptRewriter::Scan scan = rewriter.scan(shape_);
  Params p = Params::from_text(scan.policy, "the scan's kv_policy");
  Options options;
  options.page_tokens = options_.page_tokens, options.kv_bytes = options_.kv_bytes, options.seed = options_.seed;
  PolicyCache cache(*model_->transformer(), read_recipe(p), options);
  EngineSequence sequence;
  sequence.prompt_tokens = seq.end(), sequence.question_begin = seq.question_begin, sequence.draws = seq.draws;
  sequence.ids.assign(ids.begin(), ids.end());
  ScanHost host(cache, rewriter.reads(shape_), scan.layers - 1);
  scan_prompt(*model_->transformer(), cache, sequence, scan, host);
  const std::vector<const float*> vectors = host.vectors();
  const Ops::Frame frame(ops_);
  const std::int32_t* const chosen = rewriter.choose({ops_, shape_, seq, vectors});
  return {chosen, chosen + policy_.step_tokens(seq, 0)};
}

AttentionHost::Rewritten PolicyCache::rewritten(const TokenBatch& batch) {
  if (policy_.rewriter() == nullptr) return {};
  std::vector<std::vector<std::int32_t>> stay;
  bool any = false;
  const std::vector<Piece> pieces = pieces_in_order();
  for (const auto& [g, s] : pieces) {
    const SeqStep& seq = g->seqs[s];
    stay.emplace_back();
    if (policy_.step_tokens(seq, 0) == seq.new_tokens) continue;
    stay.back() = tokens_that_stay(seq, batch.ids.subspan(static_cast<std::size_t>(g->first[s]), place(seq.new_tokens)));
    any = true;
  }
  if (!any) return {};
  rewritten_rows_.clear(), rewritten_positions_.clear();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    take_rows(pieces[i], stay[i], rewritten_rows_);
    const std::int32_t rows = pieces[i].group->rows[pieces[i].s], end = pieces[i].group->seqs[pieces[i].s].end();
    for (std::int32_t r = end - rows; r < end; ++r) rewritten_positions_.push_back(r);
  }
  return {rewritten_rows_, rewritten_positions_};
}

}  // namespace kvlab
