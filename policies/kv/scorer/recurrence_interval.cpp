#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

class RecurrenceInterval final : public Scorer {
 public:
  explicit RecurrenceInterval(Params& p)
      : threshold_(static_cast<float>(p.optional<double>("attention_frac", 1e-4, 0.0, 1.0, "attention from which a query needs a token"))),
        recent_(p.optional<std::int32_t>("recent_tokens", 128, 0, 1 << 20, "latest tokens that are never evicted")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return 2; }
  [[nodiscard]] Protected protects() const override { return {0, recent_}; }

  void observe(LayerStep& step) override {
    TokenStats stats{.kv = step.kv, .queries = step.in.step.data(), .kind = TokenStats::Kind::kRecurrence, .first_word = first_word()};
    stats.group = AttentionStats::Group::kMax;  // one query head suffices
    stats.threshold = threshold_;
    step.ops(stats);
  }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kRecurrence, first_word(), 0, end_positions(step), nullptr, scores});
  }

 private:
  float threshold_;
  std::int32_t recent_;
};

KVLAB_REGISTER(Scorer, RecurrenceInterval, "recurrence_interval",
               "how a token's idle time compares with its longest interval of recurrence",
               "LazyEviction: Zhang et al. 2025, arXiv:2506.15969");

}  // namespace

}  // namespace kvlab
