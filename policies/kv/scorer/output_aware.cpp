#include <algorithm>

#include "kernels/score/mark_top/mark_top.h"
#include "kernels/score/projected_norms/projected_norms.h"
#include "kernels/score/score_map/score_map.h"
#include "policies/kv/scorer_wrapper.h"

namespace kvlab {

namespace {

// Half of what is kept goes to the best scores, the rest to score times the size of what the value adds to the layer's output, which
// bounds the output's change. CriticalKV, Feng et al. 2025, arXiv:2502.03805, algorithm 1.
class OutputAware final : public ScorerWrapper {
 public:
  explicit OutputAware(Params& p)
      : ScorerWrapper(p, "window_attention"),
        first_(p.optional<double>("first_stage_frac", 0.5, 0.0, 1.0, "share of a head's budget chosen by score alone")),
        floor_(p.optional<double>("first_stage_floor_frac", 0.0, 0.0, 1.0,
                                  "at least this share of the mean budget of the sequence's heads is chosen by score alone")),
        epsilon_(p.optional<float>("epsilon", 1e-4F, 0.0F, 1.0F, "added to scores before the product")),
        above_max_(p.choice("protect", {{"infinite", false}, {"above_max", true}}, false, "how the scorer's own tokens are protected")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs = inner().needs();
    needs.output_weights = true;
    return needs;
  }
  [[nodiscard]] Protected protects() const override { return above_max_ ? Protected{} : inner().protects(); }

  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    if (above_max_) protect_ends(step, inner().protects(), scores, true);
  }

  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    const KvRows& kv = step.kv;
    inner().refine(step, keep, scores);
    std::int32_t* first = step.ops.host_ints(kv.num_rows);
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      std::int64_t sum = 0;
      for (std::int32_t r = s * kv.kv_heads; r < (s + 1) * kv.kv_heads; ++r) sum += keep[r];
      const std::int64_t mean = sum / kv.kv_heads;
      const auto least = static_cast<std::int32_t>(floor_ * static_cast<double>(mean));
      for (std::int32_t r = s * kv.kv_heads; r < (s + 1) * kv.kv_heads; ++r)
        first[r] = std::min(keep[r], std::max(least, static_cast<std::int32_t>(first_ * keep[r])));
    }
    step.ops(MarkTop{kv.num_rows, kv.first, scores, first, scores});
    float* norms = step.ops.floats(kv.total());
    step.ops(ProjectedNorms{kv, step.in.w_o, step.model.hidden_dim, ProjectedNorms::Kind::kL1, norms});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kTimes, scores, 1.0F, epsilon_, true, norms, nullptr, scores});
  }

 private:
  double first_, floor_;
  float epsilon_;
  bool above_max_;
};

KVLAB_REGISTER(Scorer, OutputAware, "output_aware", "half by score, half by score times the value's size in the layer's output",
               "CriticalKV: Feng et al. 2025, arXiv:2502.03805, algorithm 1");

}  // namespace

}  // namespace kvlab
