#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// New tokens start with the current time and one hit.
class TopKHits final : public Scorer {
 public:
  explicit TopKHits(Params& p)
      : counts_(p.choice("rank_by", {{"last", false}, {"count", true}}, false,
                         "position of the last query that hit the token (LRA), or number of hits (LFA)")),
        top_(p.optional<std::int32_t>("top_tokens", 32, 1, 1 << 16, "most attended tokens of a query that count as hit")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return 2; }

  void observe(LayerStep& step) override {
    step.ops(TokenStats{
        .kv = step.kv, .queries = step.in.step.data(), .kind = TokenStats::Kind::kTopHits, .first_word = first_word(), .top = top_});
  }
  void score(LayerStep& step, float* scores) override {
    const TokenScores::Kind kind = counts_ ? TokenScores::Kind::kHits : TokenScores::Kind::kLastHit;
    step.ops(TokenScores{step.kv, kind, first_word(), 0, end_positions(step), nullptr, scores});
  }

 private:
  bool counts_;
  std::int32_t top_;
};

KVLAB_REGISTER(Scorer, TopKHits, "topk_hits", "when or how often a token was among a query's most attended",
               "Attendre: Yang and Hua 2024, arXiv:2401.04881");

}  // namespace

}  // namespace kvlab
