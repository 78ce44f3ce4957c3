#include "policies/kv/scorer/diversify_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"

namespace kvlab {

namespace {

// The most similar source decides (ours), since the product underflows.
class Graph final : public ScorerWrapper {
 public:
  explicit Graph(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "graph"}),
        sources_(p.optional<double>("sources_frac", 0.5, 0.0, 1.0, "share of the budget whose tokens decay the others")),
        product_(p.choice("combine", {{"max", false}, {"product", true}}, false, "decay by the most similar source, or by all of them")) {}

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    inner().refine(step, keep, scores);
    std::int32_t* sources = step.ops.host_ints(step.kv.num_rows);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) sources[r] = static_cast<std::int32_t>(sources_ * keep[r]);
    step.ops(Diversify{step.kv, sources, product_, scores});
  }

 private:
  double sources_;
  bool product_;
};

KVLAB_REGISTER(Scorer, Graph, "graph", "another score, decayed by likeness to the best tokens' keys",
               "GraphKV: Li et al. 2025, arXiv:2509.00388");

}  // namespace

}  // namespace kvlab
