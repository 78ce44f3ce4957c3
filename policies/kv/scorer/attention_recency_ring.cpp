#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Important: more attention than an even share of the sequence, or of the held tokens.
class AttentionRecencyRing final : public Scorer {
 public:
  explicit AttentionRecencyRing(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 256, 1, 4096, "latest queries that count; as many latest tokens stay")),
        visible_(p.choice("even_share_of", {{"sequence", false}, {"visible", true}}, false,
                          "the share is 1 / tokens of the sequence, or of those still held")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return TokenStats::ring_words(window_); }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void observe(LayerStep& step) override {
    const std::vector<Queries> latest = last_queries(step.in.step, window_, step.model);
    step.ops(TokenStats{.kv = step.kv,
                        .queries = latest.data(),
                        .kind = TokenStats::Kind::kRing,
                        .first_word = first_word(),
                        .ring_tokens = window_,
                        .threshold_by_position = !visible_});
  }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kRingSet, first_word(), window_, end_positions(step), nullptr, scores});
  }

 private:
  std::int32_t window_;
  bool visible_;
};

KVLAB_REGISTER(Scorer, AttentionRecencyRing, "attention_recency_ring", "to how many of the last queries a token was important",
               "CORM: Dai et al. 2024, arXiv:2404.15949");

}  // namespace

}  // namespace kvlab
