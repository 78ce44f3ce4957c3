#include "kernels/score/token_scores_op.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

class Recency final : public Scorer {
 public:
  explicit Recency(Params& p)
      : sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens that are never evicted; 0: first in, first out")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }
  [[nodiscard]] bool keeps_latest() const override { return true; }
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] Protected protects() const override { return {sinks_, 0}; }
  [[nodiscard]] bool cuts_affinely() const override { return true; }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kPosition, 0, 0, end_positions(step), nullptr, scores});
  }

 private:
  std::int32_t sinks_;
};

KVLAB_REGISTER(Scorer, Recency, "recency", "newest tokens, and the first ones as attention sinks",
               "StreamingLLM: Xiao et al. 2023, arXiv:2309.17453, section 3");

}  // namespace

}  // namespace kvlab
