#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"

namespace kvlab {

namespace {

// First tokens have small values, so they are protected.
class ValueAware final : public ScorerWrapper {
 public:
  explicit ValueAware(Params& p)
      : ScorerWrapper(p, "accumulated_attention", {.wrapper = "value_aware"}),
        norm_(p.choice("norm", {{"l1", TokenNorms::Kind::kL1}, {"l2", TokenNorms::Kind::kL2}}, TokenNorms::Kind::kL1, "norm of the value")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 20, 0, 1 << 20, "first tokens, always kept")) {}

  [[nodiscard]] Protected protects() const override {
    Protected all = inner().protects();
    all.sinks = std::max(all.sinks, sinks_);
    return all;
  }

  [[nodiscard]] bool is_order_free(const FewTokens& few) const override { return inner().is_order_free(few); }
  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    inner().score(step, scores);
    float* norms = step.ops.floats(kv.total());
    step.ops(TokenNorms{kv, TokenNorms::Of::kValue, norm_, norms});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kTimes, scores, 1.0F, 0.0F, true, norms, nullptr, scores});
  }

 private:
  TokenNorms::Kind norm_;
  std::int32_t sinks_;
};

KVLAB_REGISTER(Scorer, ValueAware, "value_aware", "another score times the L1 norm of the value",
               "VATP: Guo et al. 2024, arXiv:2406.12335");

}  // namespace

}  // namespace kvlab
