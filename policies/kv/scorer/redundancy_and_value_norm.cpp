#include <algorithm>
#include <limits>

#include "kernels/score/anchor_cosine_op.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/scorer/scorer.h"

namespace kvlab {

namespace {

// TaR and VaN of section 3. Shallow layers smooth values more. For text a frame is one token (ours).
class InfiniPot final : public Scorer {
 public:
  explicit InfiniPot(Params& p)
      : reference_(p.optional<double>("reference_frac", 0.25, 0.0, 1.0, "newest share of the held tokens: reference, and kept")),
        redundancy_(
            p.optional<double>("redundancy_frac", 0.5, 0.0, 1.0, "share of the budget chosen by redundancy, the reference included")) {}

  void score(LayerStep& step, float* scores) override {
    step.ops(TokenNorms{step.kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2, scores});
    const std::int32_t quarter = std::min(3, 4 * step.layer / std::max(1, step.model.num_layers)), width = 7 - 2 * quarter;
    if (width > 1) step.ops(Pool1d{step.kv.num_rows, step.kv.first, nullptr, step.kv.len, scores, width, Pool1d::Kind::kAvg});
  }

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const KvRows& kv = step.kv;
    std::int32_t *newest = step.ops.host_ints(kv.num_rows), *chosen = step.ops.host_ints(kv.num_rows);
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const auto half = static_cast<std::int32_t>(redundancy_ * keep[r]);
      const std::int32_t reference = std::min(static_cast<std::int32_t>(reference_ * kv.len[r]), half);
      newest[r] = kv.len[r] - reference;
      chosen[r] = half - reference;
    }
    float* likeness = step.ops.floats(kv.total());
    step.ops(AnchorCosine{kv, newest, kv.len, false, -1.0F, likeness});
    step.ops(ScoreMap::fill(kv.num_rows, kv.first, newest, kv.len, -kInfinity, 0.0F, likeness));
    step.ops(ScoreMap::fill(kv.num_rows, kv.first, newest, kv.len, kInfinity, 0.0F, scores));
    step.ops(MarkTop{kv.num_rows, kv.first, likeness, chosen, scores});
  }
  [[nodiscard]] bool comparable_across_heads() const override { return false; }

 private:
  double reference_, redundancy_;
};

KVLAB_REGISTER(Scorer, InfiniPot, "redundancy_and_value_norm", "keys least like the newest ones, then large values",
               "InfiniPot-V: Kim et al. 2025, arXiv:2506.15745");

}  // namespace

}  // namespace kvlab
