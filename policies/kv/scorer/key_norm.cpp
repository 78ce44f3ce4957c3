#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/scorer/scorer.h"

namespace kvlab {

namespace {

// Section 3. Over all heads' concatenated keys: QuickVideo.
class KeyNorm final : public Scorer {
 public:
  explicit KeyNorm(Params& p)
      : shared_(p.choice("heads", {{"own", false}, {"shared", true}}, false, "norm of each head's key, or over all KV heads at once")),
        comparable_(p.flag("compare_heads", false, "norms of different heads may be ranked together, as kvpress does")) {}

  [[nodiscard]] bool is_order_free(const FewTokens& few) const override { return few.alike || !shared_; }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenNorms{step.kv, TokenNorms::Of::kKey, shared_ ? TokenNorms::Kind::kL2Squared : TokenNorms::Kind::kL2, scores});
    if (shared_) step.ops(ReduceHeads{step.kv, ReduceHeads::Kind::kRootOfSum, scores});
    step.ops(ScoreMap{step.kv.num_rows, step.kv.first, ScoreMap::Kind::kPlus, scores, -1.0F, 0.0F, false, nullptr, nullptr, scores});
  }
  [[nodiscard]] bool comparable_across_heads() const override { return comparable_; }

 private:
  bool shared_, comparable_;
};

KVLAB_REGISTER(Scorer, KeyNorm, "key_norm", "keys of small norm stay", "Knorm: Devoto et al. 2024, arXiv:2406.11430");

}  // namespace

}  // namespace kvlab
