#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/head_scores_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/select/mean_query_op.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/format/probe_sums.h"
#include "policies/kv/format/probes.h"
#include "policies/kv/prefill_selector/prefill_selector.h"
#include "policies/kv/prefill_selector/prompt_rows.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

class AllOfPrompt final : public PrefillSelector {
 public:
  explicit AllOfPrompt(Params&) {}
  [[nodiscard]] bool is_dense(std::int32_t) const override { return true; }
  [[nodiscard]] bool selects_all() const override { return true; }
  std::int64_t attend(const PromptChunk&) override { throw InternalError("a dense layer's prompt is the model's own attention"); }
};

KVLAB_REGISTER(PrefillSelector, AllOfPrompt, "all", "a prompt's queries attend to every token before them",
               "Vaswani et al. 2017, arXiv:1706.03762");

// Adds a dense query's difference to the queries after it.
class DeltaCorrection final : public PrefillSelector {
 public:
  explicit DeltaCorrection(Params& p)
      : stride_(p.optional<std::int32_t>("stride_tokens", 64, 1, 1 << 16, "distance of the queries that are computed densely")) {
    auto [name, inner] = p.named("of", "a_shape", "the prefill selector that it corrects; `kvlab list prefill_selectors`");
    if (!p.is_describing()) inner_ = PrefillSelectorRegistry::make(name, inner, "prefill_selector");
  }
  [[nodiscard]] Needs needs() const override { return inner_->needs(); }
  [[nodiscard]] bool is_dense(std::int32_t layer) const override { return inner_->is_dense(layer); }
  [[nodiscard]] bool selects_all() const override { return inner_->selects_all(); }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return inner_->refuses(model); }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return inner_->layer_kind(layer); }
  void forget(std::int32_t index) override { inner_->forget(index); }

  std::int64_t attend(const PromptChunk& chunk) override {
    const std::int64_t pairs = inner_->attend(chunk);
    ChosenPrefill correction = chosen_prefill(chunk);
    correction.stride = stride_, correction.log_sum = nullptr;
    chunk.ops(correction);
    return pairs + chosen_pairs(correction);
  }

 private:
  std::int32_t stride_;
  std::unique_ptr<PrefillSelector> inner_;
};

KVLAB_REGISTER(PrefillSelector, DeltaCorrection, "delta", "another selector's attention, corrected by every n-th query's dense attention",
               "Delta Attention: Willette et al. 2025, arXiv:2505.11254");

// Each chunk also attends to itself, the first and the preceding tokens.
class TokenVotes final : public PrefillSelector {
 public:
  explicit TokenVotes(Params& p)
      : chunk_(p.optional<std::int32_t>("chunk_tokens", 512, 1, 1 << 20, "queries that elect together; larger chunks are cut into such")),
        sinks_(p.optional<std::int32_t>("sink_tokens", 128, 0, 1 << 26, "first tokens of the prompt")),
        recent_(p.optional<std::int32_t>("recent_tokens", 512, 0, 1 << 26, "newest tokens before a chunk")),
        top_(p.optional<std::int32_t>("top_tokens", 2048, 1, 1 << 26, "elected tokens between them")) {}

  std::int64_t attend(const PromptChunk& chunk) override {
    std::int64_t pairs = 0;
    for (std::int32_t begin = chunk.seq.seen_tokens; begin < chunk.seq.end(); begin += chunk_)
      pairs += attend_piece(piece_of(chunk, begin, std::min(begin + chunk_, chunk.seq.end())));
    return pairs;
  }

 private:
  static PromptChunk piece_of(const PromptChunk& chunk, std::int32_t begin, std::int32_t end) {
    const std::int64_t rows = begin - chunk.seq.seen_tokens, heads = chunk.model.q_heads, width = heads * chunk.model.head_dim;
    PromptChunk piece = chunk;
    piece.seq.seen_tokens = begin, piece.seq.new_tokens = end - begin;
    if (chunk.q != nullptr) piece.q += rows * width, piece.out += rows * width;
    if (chunk.log_sum != nullptr) piece.log_sum += rows * heads;
    return piece;
  }

  std::int64_t attend_piece(const PromptChunk& piece) {
    Ops& ops = piece.ops;
    const Ops::Frame frame(ops);
    const std::int32_t before = piece.seq.seen_tokens, candidates = before - sinks_ - recent_;
    ChosenPrefill op = chosen_prefill(piece);
    std::int32_t* const queries = ops.host_ints(1);
    queries[0] = piece.seq.new_tokens, op.queries = queries;
    if (candidates > top_) {
      std::int64_t* const first = ops.host_longs(2);
      first[0] = 0, first[1] = top_, op.first = first;
      op.base = op.head = sinks_, op.tail = before - recent_;
      op.index = elect(piece, first, candidates);
    }
    ops(op);
    return chosen_pairs(op);
  }

  const std::int32_t* elect(const PromptChunk& piece, const std::int64_t* index_first, std::int32_t candidates) const {
    Ops& ops = piece.ops;
    const ModelShape& m = piece.model;
    const Queries all = prompt_queries(piece, piece.seq.seen_tokens, piece.seq.end());
    MeanQuery mean{1, m.q_heads * m.head_dim, &all, ops.floats(std::int64_t{m.q_heads} * m.head_dim)};
    ops(mean);
    const Queries elector{mean.mean, 1, piece.seq.seen_tokens};
    std::int64_t* const first = ops.host_longs(2);
    std::int32_t *begin = ops.host_ints(1), *keep = ops.host_ints(1);
    first[0] = 0, first[1] = candidates, begin[0] = sinks_, keep[0] = top_;
    HeadScores votes{prompt_rows(piece, piece.seq.seen_tokens), &elector, first, ops.floats(candidates), HeadScores::Kind::kVotes, begin};
    ops(votes);
    std::int32_t* const index = ops.ints(top_);
    ops(TopK{1, first, votes.out, keep, index_first, index});
    return index;
  }

  std::int32_t chunk_, sinks_, recent_, top_;
};

KVLAB_REGISTER(PrefillSelector, TokenVotes, "token_votes",
               "chunks attend to tokens that all heads of a layer elect by the chunk's mean query",
               "TokenSelect: Wu et al. 2024, arXiv:2411.02886");

// Section 3.2, and the newest tokens. Sets per KV head, and zeros for other queries, are our definition.
class ProbedTokens final : public PrefillSelector {
 public:
  explicit ProbedTokens(Params& p)
      : mass_(p.optional<double>("mass_frac", 0.975, 0, 1, "share of the probes' attention that important tokens hold")),
        probes_{p.optional<double>("probe_frac", 0.05, 0.001, 1, "share of queries that are probes: of the newest, and again at random")},
        recent_(p.optional<std::int32_t>("recent_tokens", 64, 1, 1 << 26, "newest tokens of a chunk, always important")),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 0, 0, 1 << 16, "first layers in which prompts attend to every token")),
        expected_(p.optional<double>("cost_share", 0.5, 0, 1, "share of tokens that costs assume important, where no tensors are read")) {}

  [[nodiscard]] bool is_dense(std::int32_t layer) const override { return layer < dense_layers_; }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return is_dense(layer) ? 0 : 1; }

  std::int64_t attend(const PromptChunk& chunk) override {
    Ops& ops = chunk.ops;
    const std::vector<Queries> pieces = probe_pieces(chunk);
    ChosenPrefill op = chosen_prefill(chunk);
    const std::int32_t heads = chunk.model.kv_heads, end = chunk.seq.end();
    std::int32_t* const queries = ops.host_ints(heads);
    op.num_lists = heads, op.queries = queries;
    if (pieces.empty()) return attend_to_all(op, ops, chunk.seq.new_tokens);
    op.tail = end;
    choose(chunk, pieces, op);
    for (std::int32_t h = 0; h < heads; ++h)
      queries[h] =
          std::clamp(share_of(chunk.seq.new_tokens), std::min(recent_, chunk.seq.new_tokens), static_cast<std::int32_t>(op.keys(h)));
    ops(CountScores{.num_rows = heads,
                    .first = op.first,
                    .kind = CountScores::Kind::kListedFrom,
                    .limit = static_cast<double>(chunk.seq.seen_tokens),
                    .count = queries,
                    .index = op.index});
    ops.settle("important_queries", chunk.layer, {queries, static_cast<std::size_t>(heads)});
    ops(op);
    return chosen_pairs(op);
  }

 private:
  [[nodiscard]] std::int32_t share_of(std::int32_t tokens) const { return static_cast<std::int32_t>(std::ceil(expected_ * tokens)); }

  [[nodiscard]] std::vector<Queries> probe_pieces(const PromptChunk& chunk) const {
    std::vector<Queries> pieces;
    for (const Probes::Range& range : probes_.ranges(chunk.seq, chunk.seq.seen_tokens, chunk.seq.end()))
      pieces.push_back(prompt_queries(chunk, range.begin, range.end));
    return pieces;
  }

  // For chunks without probes.
  static std::int64_t attend_to_all(ChosenPrefill& op, Ops& ops, std::int32_t queries) {
    std::int32_t* const count = ops.host_ints(1);
    count[0] = queries;
    op.num_lists = 1, op.queries = count;
    ops(op);
    return chosen_pairs(op);
  }

  void choose(const PromptChunk& chunk, const std::vector<Queries>& pieces, ChosenPrefill& op) const {
    Ops& ops = chunk.ops;
    const std::int32_t heads = chunk.model.kv_heads, n = chunk.seq.end(), newest = std::min(recent_, chunk.seq.new_tokens);
    const KvRows kv = prompt_rows(chunk, n, 1);
    const float* const scores = important(chunk, kv, pieces, newest);
    std::int32_t *index = ops.ints(kv.total()), *keep = ops.host_ints(heads);
    std::fill_n(keep, heads, share_of(n));
    if (index != nullptr) {
      std::vector<std::int32_t> all(static_cast<std::size_t>(kv.total()));
      for (std::int32_t h = 0; h < heads; ++h) std::iota(all.begin() + kv.first[h], all.begin() + kv.first[h + 1], 0);
      chunk.memory.from_host(index, all.data(), 4 * kv.total());
    }
    ops(CountScores{.num_rows = heads,
                    .first = kv.first,
                    .kind = CountScores::Kind::kListedMass,
                    .limit = mass_,
                    .count = keep,
                    .index = index,
                    .kv = kv});
    ops.settle("important_tokens", chunk.layer, {keep, static_cast<std::size_t>(heads)});
    std::int64_t* const first = ops.host_longs(heads + 1);
    first[0] = 0;
    for (std::int32_t h = 0; h < heads; ++h) keep[h] = std::clamp(keep[h], newest, n), first[h + 1] = first[h] + keep[h];
    std::int32_t* const chosen = ops.ints(first[heads]);
    ops(TopK{heads, kv.first, scores, keep, first, chosen});
    op.first = first, op.index = chosen;
  }

  // Infinite for newest tokens.
  static const float* important(const PromptChunk& chunk, const KvRows& kv, const std::vector<Queries>& pieces, std::int32_t newest) {
    Ops& ops = chunk.ops;
    const auto count = static_cast<std::int64_t>(pieces.size());
    std::int64_t* const first = ops.host_longs(2);
    std::int32_t *end = ops.host_ints(1), *from = ops.host_ints(count), *to = ops.host_ints(count);
    first[0] = 0, first[1] = count, end[0] = chunk.seq.end();
    for (std::int64_t j = 0; j < count; ++j) {
      const Queries& piece = pieces[static_cast<std::size_t>(j)];
      from[j] = piece.first_position, to[j] = piece.first_position + piece.count;
    }
    ops(ProbeSums{kv, 0, first, pieces.data(), end});
    float* const scores = ops.floats(kv.total());
    ops(TokenScores{.kv = kv, .kind = TokenScores::Kind::kProbeMean, .scores = scores, .probes = {first, from, to}});
    const std::int32_t* begin = per_row(ops, kv.num_rows, [&](std::int32_t) { return chunk.seq.end() - newest; });
    ops(ScoreMap::fill(kv.num_rows, kv.first, begin, kv.len, std::numeric_limits<float>::infinity(), 0.0F, scores));
    return scores;
  }

  double mass_;
  Probes probes_;
  std::int32_t recent_, dense_layers_;
  double expected_;
};

KVLAB_REGISTER(PrefillSelector, ProbedTokens, "probed_tokens", "attention among as many tokens as hold a share of the probes' attention",
               "ZipVL: He et al. 2024, arXiv:2410.08584");

}  // namespace

}  // namespace kvlab
