#include "kernels/score/reduce_heads_op.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// With all the step's queries: CItruS, standard mode; per KV head: SAGE-KV.
class LastQueryAttention final : public Scorer {
 public:
  explicit LastQueryAttention(Params& p)
      : whole_step_(p.choice("queries", {{"last", false}, {"step", true}}, false,
                             "whose attention counts: the newest query's, or all of the step's (a chunk's)")),
        shares_heads_(p.flag("share_heads", true, "one set per layer, by the mean over its heads; else one per KV head")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 0, 0, 1 << 20, "first tokens that are never evicted")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "latest tokens that are never evicted")),
        recent_frac_(p.optional<double>("recent_frac", 0.0, 0.0, 1.0, "share of the budget for further latest tokens")) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  // Heads are averaged by place.
  [[nodiscard]] bool is_order_free(const FewTokens& few) const override { return few.alike || !shares_heads_; }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_, false, recent_frac_}; }

  void score(LayerStep& step, float* scores) override {
    if (whole_step_) {
      sum_attention(step, step.in.step.data(), scores);
    } else {
      sum_attention(step, last_queries(step.in.step, 1, step.model).data(), scores);
    }
    if (shares_heads_) step.ops(ReduceHeads{step.kv, ReduceHeads::Kind::kMean, scores});
  }

 private:
  bool whole_step_, shares_heads_;
  std::int32_t sinks_, recent_;
  double recent_frac_;
};

KVLAB_REGISTER(Scorer, LastQueryAttention, "last_query_attention", "attention of the newest query, averaged over the layer's heads",
               "TOVA: Oren et al. 2024, arXiv:2401.06104");

}  // namespace

}  // namespace kvlab
