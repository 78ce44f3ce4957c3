#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Keeps one bit per token and query.
class LowAttentionCount final : public Scorer {
 public:
  explicit LowAttentionCount(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 400, 1, 4096, "latest queries that count")),
        recent_(p.optional<std::int32_t>("recent_tokens", 10, 0, 1 << 20, "latest tokens that are never evicted")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return TokenStats::ring_words(window_); }
  [[nodiscard]] Protected protects() const override { return {0, recent_}; }

  void observe(LayerStep& step) override {
    const std::vector<Queries> latest = last_queries(step.in.step, window_, step.model);
    step.ops(TokenStats{
        .kv = step.kv, .queries = latest.data(), .kind = TokenStats::Kind::kRing, .first_word = first_word(), .ring_tokens = window_});
  }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kRingClear, first_word(), window_, end_positions(step), nullptr, scores});
  }

 private:
  std::int32_t window_, recent_;
};

KVLAB_REGISTER(Scorer, LowAttentionCount, "low_attention_count", "how rarely the last queries gave a token less than an even share",
               "Scissorhands: Liu et al. 2023, arXiv:2305.17118, algorithm 2");

}  // namespace

}  // namespace kvlab
