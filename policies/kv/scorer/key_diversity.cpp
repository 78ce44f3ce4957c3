#include <algorithm>

#include "kernels/score/anchor_cosine_op.h"
#include "policies/kv/scorer/scorer.h"

namespace kvlab {

namespace {

// Minus the cosine with the mean of the held, normalised keys.
class KeyDiversity final : public Scorer {
 public:
  explicit KeyDiversity(Params&) {}

  void score(LayerStep& step, float* scores) override {
    std::int32_t* begin = step.ops.host_ints(step.kv.num_rows);
    std::fill_n(begin, step.kv.num_rows, 0);
    step.ops(AnchorCosine{step.kv, begin, step.kv.len, true, -1.0F, scores});
  }
};

KVLAB_REGISTER(Scorer, KeyDiversity, "key_diversity", "keys least like the mean key stay", "KeyDiff: Park et al. 2025, arXiv:2504.15364");

}  // namespace

}  // namespace kvlab
