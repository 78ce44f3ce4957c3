#include "base/error.h"
#include "policies/kv/scorer/representatives_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"

namespace kvlab {

namespace {

// One set for all heads.
class RepresentativeTokens final : public ScorerWrapper {
  using Anchor = Representatives::Anchor;

 public:
  explicit RepresentativeTokens(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "representatives"}),
        share_(p.optional<double>("representatives_frac", 0.25, 0.0, 1.0, "share of the budget that goes to representatives")),
        anchor_(p.choice("anchor",
                         {{"mean", Anchor::kMajority},
                          {"zeros", Anchor::kZeros},
                          {"ones", Anchor::kOnes},
                          {"alternating", Anchor::kAlternating},
                          {"random", Anchor::kRandom}},
                         Anchor::kMajority, "signature that distances are measured from")) {}

  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kLeft; }

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    const KvRows& kv = step.kv;
    inner().refine(step, keep, scores);
    std::int32_t *important = step.ops.host_ints(kv.num_sequences()), *others = step.ops.host_ints(kv.num_sequences());
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const std::int32_t row = s * kv.kv_heads;
      for (std::int32_t r = row; r < row + kv.kv_heads; ++r)
        if (keep[r] != keep[row] || kv.len[r] != kv.len[row])
          throw InputError("scorer 'representatives' keeps one set for all KV heads: it needs an allocator that gives them the same count");
      others[s] = static_cast<std::int32_t>(share_ * keep[row]);
      important[s] = keep[row] - others[s];
    }
    step.ops(Representatives{kv, important, others, anchor_, step.seed, scores});
  }

 private:
  double share_;
  Anchor anchor_;
};

KVLAB_REGISTER(Scorer, RepresentativeTokens, "representatives", "the best tokens and some that represent the rest",
               "KVCrush: Jha et al. 2025, arXiv:2503.00022");

}  // namespace

}  // namespace kvlab
