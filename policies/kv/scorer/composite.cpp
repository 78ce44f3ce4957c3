#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"

namespace kvlab {

namespace {

class Composite final : public ScorerWrapper {
 public:
  explicit Composite(Params& p) : ScorerWrapper(p, "window_attention", {.wrapper = "composite", .adds_scores = true}) {}

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    inner().score(step, scores);
    float* mean = step.ops.floats(kv.total());
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, scores, 1.0F, 0.0F, false, nullptr, nullptr, mean});
    step.ops(ReduceHeads{kv, ReduceHeads::Kind::kMean, mean});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, scores, 1.0F, 0.0F, true, mean, nullptr, scores});
  }
};

KVLAB_REGISTER(Scorer, Composite, "composite", "another score plus its mean over heads", "KVCompose: Akulov et al. 2025, arXiv:2509.05165");

}  // namespace

}  // namespace kvlab
