#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// An upper bound, as if all tokens were kept.
class Oracle final : public Scorer {
 public:
  explicit Oracle(Params&) {}
  [[nodiscard]] Needs needs() const override { return {.future_queries = true}; }
  void score(LayerStep& step, float* scores) override { sum_attention(step, step.in.future.data(), scores); }
};

KVLAB_REGISTER(Scorer, Oracle, "oracle", "attention of the queries still to come", "upper bound of ours");

}  // namespace

}  // namespace kvlab
