#include <numeric>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/allocate/pool_numbers_op.h"
#include "kernels/allocate/rank_means/rank_means.h"
#include "kernels/score/protect_op.h"
#include "policies/kv/allocator/allocator.h"
#include "policies/kv/allocator/counts.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Lazy layers: the last query's attention to first and latest tokens, mean over heads, exceeds tau.
class LazyLayers final : public Allocator {
 public:
  explicit LazyLayers(Params& p)
      : tau_(p.optional<double>("tau", 0.9, 0, 1, "attention on first and latest tokens above which a layer is lazy")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, counted in the budget")),
        kvpress_(p.choice("measures", {{"kept_tokens", false}, {"kvpress", true}}, false,
                          "kept_tokens: attention on what a lazy layer keeps; kvpress: as kvpress 0.5.4, without the query's own token and "
                          "with one more before them")) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = 1}; }
  [[nodiscard]] bool depends_on_data() const override { return true; }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers) {
      const Ops::Frame frame(ops);
      const std::int32_t* lazy = measure(ops, model, seqs, l);
      for (std::int32_t s = 0; s < l.kv.num_sequences(); ++s)
        keep_alike(l, s, lazy[s] != 0 && !is_short(l, s) ? l.target[s] : longest_row(l.kv, s));
      ops.settle("lazy_layers", l.layer, all_counts(l));
    }
  }
  [[nodiscard]] std::int32_t expected(const ModelShape&, std::int32_t, std::int32_t, std::int32_t, std::int32_t n) const override {
    return n;
  }

 private:
  // The peer skips prompts of at most sinks, recent tokens and query.
  [[nodiscard]] bool is_short(const ScoredLayer& l, std::int32_t s) const { return kvpress_ && longest_row(l.kv, s) <= l.target[s] + 2; }

  const std::int32_t* measure(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, ScoredLayer& l) const {
    const std::int32_t rows = l.kv.num_rows, sequences = l.kv.num_sequences();
    std::int32_t* lazy = ops.host_ints(sequences);
    const std::vector<Queries> last = last_queries(l.in->window, 1, model);
    LayerStep step{ops, model, l.layer, seqs, l.kv, *l.in};
    float *p = ops.floats(l.kv.total()), *mass = ops.floats(sequences);
    sum_attention(step, last.data(), p);
    std::int32_t *head_end = ops.host_ints(rows), *tail_begin = ops.host_ints(rows), *tail_end = ops.host_ints(rows);
    for (std::int32_t r = 0; r < rows; ++r) {
      const std::int32_t n = l.kv.len[r], recent = std::max(0, l.target[l.kv.sequence(r)] - sinks_) + (kvpress_ ? 1 : 0);
      tail_end[r] = kvpress_ ? std::max(0, n - 1) : n;
      head_end[r] = std::min(sinks_, tail_end[r]);
      tail_begin[r] = std::max(0, tail_end[r] - recent);
    }
    ops(PoolNumbers{sequences, l.kv.kv_heads, l.kv.first, p, mass, PoolNumbers::Kind::kMass, head_end, tail_begin, tail_end});
    std::fill_n(lazy, sequences, 0);  // bound
    std::int64_t* each = ops.host_longs(sequences + 1);
    std::iota(each, each + sequences + 1, 0);
    ops(CountScores{sequences, each, mass, CountScores::Kind::kAbove, static_cast<float>(tau_), lazy});
    return lazy;
  }

  double tau_;
  std::int32_t sinks_;
  bool kvpress_;
};

KVLAB_REGISTER(Allocator, LazyLayers, "lazy_layers", "layers that attend to first and latest tokens keep the budget, others everything",
               "SimLayerKV: Zhang et al. 2024, arXiv:2410.13846");

// The paper samples queries. A layer's heads keep equal counts, by their mean at each rank, and at least the budget.
class AttentionMassShare final : public Allocator {
 public:
  explicit AttentionMassShare(Params& p)
      : tau_(p.optional<double>("tau", 0.975, 0, 1, "share of the attention that stays")),
        window_(p.optional<std::int32_t>("window_tokens", 128, 1, 4096, "last prompt queries that are looked at")) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] bool depends_on_data() const override { return true; }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers) {
      const Ops::Frame frame(ops);
      const std::int32_t sequences = l.kv.num_sequences();
      const std::vector<Queries> window = last_queries(l.in->window, window_, model);
      LayerStep step{ops, model, l.layer, seqs, l.kv, *l.in};
      float* sums = ops.floats(l.kv.total());
      sum_attention(step, window.data(), sums);
      std::int64_t* first = ops.host_longs(sequences + 1);
      std::int32_t* counts = ops.host_ints(sequences);
      first[0] = 0;
      for (std::int32_t s = 0; s < sequences; ++s) {
        counts[s] = shortest_row(l.kv, s);  // bound
        first[s + 1] = first[s] + counts[s];
      }
      float* ranked = ops.floats(first[sequences]);
      ops(RankMeans{sequences, l.kv.kv_heads, l.kv.first, sums, first, ranked});
      ops(CountScores{sequences, first, ranked, CountScores::Kind::kLeadingMass, tau_, counts});
      for (std::int32_t s = 0; s < sequences; ++s) keep_alike(l, s, std::max(counts[s], l.target[s]));
      ops.settle("attention_mass_share", l.layer, all_counts(l));
    }
  }
  [[nodiscard]] std::int32_t expected(const ModelShape&, std::int32_t, std::int32_t, std::int32_t, std::int32_t n) const override {
    return n;
  }

 private:
  double tau_;
  std::int32_t window_;
};

KVLAB_REGISTER(Allocator, AttentionMassShare, "attention_mass_share", "a layer keeps as many tokens as hold a share of its attention",
               "ZipVL: He et al. 2024, arXiv:2410.08584");

// Ignores the budget. With waiting tokens protected, like DMS without training (Lancucki et al. 2025, arXiv:2506.05345).
class ScoreThreshold final : public Allocator {
 public:
  explicit ScoreThreshold(Params& p)
      : min_score_(static_cast<float>(
            p.optional<double>("min_score", 1.0, -1e30, 1e30, "least score of a token that stays; protected ones always do"))),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "last tokens that stay whatever their score")) {}
  [[nodiscard]] bool layers_alike() const override { return true; }

  void allocate(Ops& ops, const ModelShape&, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers) {
      const Ops::Frame frame(ops);
      if (recent_ > 0) {
        const auto sequences = static_cast<std::int64_t>(seqs.size());
        std::int32_t *begin = ops.host_ints(sequences), *end = ops.host_ints(sequences);
        for (std::size_t s = 0; s < seqs.size(); ++s) begin[s] = 0, end[s] = seqs[s].end() - recent_;
        ops(Protect{l.kv, begin, end, l.marks});
      }
      std::copy_n(l.kv.len, l.kv.num_rows, l.keep);  // bound
      ops(CountScores{l.kv.num_rows, l.kv.first, l.scores, CountScores::Kind::kAtLeast, min_score_, l.keep});
      ops.settle("score_threshold", l.layer, {l.keep, static_cast<std::size_t>(l.kv.num_rows)});
    }
  }
  [[nodiscard]] std::int32_t expected(const ModelShape&, std::int32_t, std::int32_t, std::int32_t, std::int32_t n) const override {
    return n;
  }
  [[nodiscard]] bool depends_on_data() const override { return true; }
  [[nodiscard]] FixesTokens fixes_tokens() const override { return recent_ > 0 ? FixesTokens::kSome : FixesTokens::kNone; }
  [[nodiscard]] bool splits_heads() const override { return true; }

 private:
  float min_score_;
  std::int32_t recent_;
};

KVLAB_REGISTER(Allocator, ScoreThreshold, "score_threshold", "all tokens whose score reaches a threshold",
               "CORM: Dai et al. 2024, arXiv:2404.15949");

}  // namespace

}  // namespace kvlab
