#include "kernels/score/mark_top_op.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// The recent and sink share of the budget is kept by spread.
class AttentionMeanSpread final : public Scorer {
 public:
  explicit AttentionMeanSpread(Params& p)
      : sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, counted as of largest spread")),
        newest_(p.optional<std::int32_t>("newest_tokens", 10, 0, 1 << 20, "latest tokens, counted as of largest spread")),
        spread_frac_(p.optional<double>("spread_frac", 0.3, 0.0, 1.0, "share of the budget held for its spread, beside the sinks")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return 2; }
  [[nodiscard]] Protected protects() const override { return {sinks_, newest_}; }

  void observe(LayerStep& step) override {
    step.ops(TokenStats{.kv = step.kv, .queries = step.in.step.data(), .kind = TokenStats::Kind::kMoments, .first_word = first_word()});
  }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kMean, first_word(), 0, end_positions(step), nullptr, scores});
  }
  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    float* spread = step.ops.floats(step.kv.total());
    step.ops(TokenScores{step.kv, TokenScores::Kind::kSpread, first_word(), 0, end_positions(step), nullptr, spread});
    protect_ends(step, protects(), spread);
    std::int32_t* held = step.ops.host_ints(step.kv.num_rows);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) held[r] = held_tokens(step.kv.len[r], keep[r]);
    step.ops(MarkTop{step.kv.num_rows, step.kv.first, spread, held, scores});
  }

 private:
  // Tokens held for their spread in a row of n that keeps B. Victims are among the B - r tokens of smallest spread, r = sinks +
  // floor(spread_frac * B): n - B + r are held, or min(r, B) if candidates are too few.
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
