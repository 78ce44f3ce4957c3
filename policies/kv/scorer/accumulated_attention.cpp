#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Algorithm 1. `per_query` removes the bias to early tokens (kvpress's ObservedAttention), `weigh_by_visible` that against long rows.
class AccumulatedAttention final : public Scorer {
 public:
  explicit AccumulatedAttention(Params& p)
      : divide_(p.flag("per_query", false, "divide the sum by the number of queries that saw the token")),
        weigh_(p.flag("weigh_by_visible", false, "multiply each query's attention by the number of tokens it sees")),
        decay_(static_cast<float>(p.optional<double>("decay", 1.0, 0.0, 1.0, "factor on the sum before each further query"))),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 0, 0, 1 << 20, "first tokens that are never evicted")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "latest tokens that are never evicted")),
        recent_frac_(p.optional<double>("recent_frac", 0.5, 0.0, 1.0, "share of the budget for further latest tokens")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_, false, recent_frac_}; }

  void observe(LayerStep& step) override {
    step.ops(
        TokenStats{.kv = step.kv, .queries = step.in.step.data(), .first_word = first_word(), .decay = decay_, .weigh_by_visible = weigh_});
  }
  void score(LayerStep& step, float* scores) override {
    const TokenScores::Kind kind = divide_ ? TokenScores::Kind::kMean : TokenScores::Kind::kSum;
    step.ops(TokenScores{step.kv, kind, first_word(), 0, end_positions(step), nullptr, scores});
  }

 private:
  bool divide_, weigh_;
  float decay_;
  std::int32_t sinks_, recent_;
  double recent_frac_;
};

KVLAB_REGISTER(Scorer, AccumulatedAttention, "accumulated_attention", "attention received from all queries so far, and the latest tokens",
               "H2O: Zhang et al. 2023, arXiv:2306.14048");

}  // namespace

}  // namespace kvlab
