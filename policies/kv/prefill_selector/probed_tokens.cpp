#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/format/probe_sums.h"
#include "policies/kv/format/probes.h"
#include "policies/kv/prefill_selector/prompt_rows.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

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
