#include "kernels/score/mark_top/mark_top.h"
#include "kernels/score/token_scores/token_scores.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Mean attention per query decides among tokens whose attention varies little; those of largest standard deviation stay whatever
// their mean (RoCo, Ren and Zhu 2024). How many are kept for their spread is the recent and sink share of the budget.
class AttentionMeanSpread final : public Scorer {
 public:
  explicit AttentionMeanSpread(Params& p)
      : sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, counted as of largest spread")),
        newest_(p.optional<std::int32_t>("newest_tokens", 10, 0, 1 << 20, "latest tokens, counted as of largest spread")),
        spread_frac_(p.optional<double>("spread_frac", 0.3, 0.0, 1.0, "share of the budget held for its spread, beside the sinks")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.step_queries = true;
    return needs;
  }
  [[nodiscard]] std::int32_t num_words() const override { return 2; }
  [[nodiscard]] Protected protects() const override { return {sinks_, newest_}; }

  void observe(LayerStep& step) override {
    TokenStats stats;
    stats.kv = step.kv;
    stats.queries = step.in.step.data();
    stats.kind = TokenStats::Kind::kMoments;
    stats.first_word = first_word();
    step.ops(stats);
  }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kMean, first_word(), 0, end_positions(step), nullptr, scores});
  }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    float* spread = step.ops.floats(step.kv.total());
    step.ops(TokenScores{step.kv, TokenScores::Kind::kSpread, first_word(), 0, end_positions(step), nullptr, spread});
    protect_ends(step, protects(), spread);
    std::int32_t* held = step.ops.host_ints(step.kv.num_rows);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) held[r] = held_tokens(step.kv.len[r], keep[r]);
    step.ops(MarkTop{step.kv.num_rows, step.kv.first, spread, held, scores});
  }

 private:
  // A row of n tokens that keeps B chooses its victims among the B - r tokens of smallest spread, r = sinks + floor(spread_frac * B): the
  // other n - B + r are held. If fewer candidates than victims remain, r are held (at most B). None if n <= B.
  [[nodiscard]] std::int32_t held_tokens(std::int32_t n, std::int32_t budget) const {
    const std::int32_t victims = n - budget;
    if (victims <= 0) return 0;
    const std::int32_t reserve = sinks_ + static_cast<std::int32_t>(spread_frac_ * budget);
    return std::min(budget - reserve >= victims ? victims + reserve : reserve, budget);
  }

  std::int32_t sinks_, newest_;
  double spread_frac_;
};

KVLAB_REGISTER(Scorer, AttentionMeanSpread, "attention_mean_spread", "mean attention among tokens of small spread; large spread stays",
               "RoCo: Ren and Zhu 2024, arXiv:2402.06262");

}  // namespace

}  // namespace kvlab
