#include "kernels/pool1d/pool1d.h"
#include "kernels/window_moments/window_moments.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Attention that the prompt's last queries pay to each earlier token: its mean over these queries and, many times heavier, its variance,
// smoothed over neighbours. What some query may come back to varies. CAKE, Qin et al. 2025, arXiv:2503.12491, eq. 9.
class WindowMeanVariance final : public Scorer {
 public:
  explicit WindowMeanVariance(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that are looked at; their tokens stay")),
        gamma_(p.optional<float>("gamma", 200, 0, 1e6, "weight of the variance")),
        pool_(p.choice("pool", {"avg", "max", "none"}, 0, "how scores are smoothed over neighbouring tokens")),
        pool_tokens_(p.optional<std::int32_t>("pool_tokens", 5, 1, 1023, "neighbours pooled, odd")) {
    if (pool_tokens_ % 2 == 0) p.fail_at("pool_tokens", "'pool_tokens' must be odd, so that the pool is centred");
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.window_queries = window_;
    return needs;
  }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void score(LayerStep& step, float* scores) override {
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    WindowMoments moments;
    moments.kv = step.kv;
    moments.queries = window.data();
    moments.wants_scores = true;
    moments.gamma = gamma_;
    moments.scores = scores;
    step.ops(moments);
    if (pool_ == 2) return;
    std::int32_t* older = step.ops.host_ints(step.kv.num_rows);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) older[r] = std::max(0, step.kv.len[r] - window_);
    step.ops(Pool1d{step.kv.num_rows, step.kv.first, older, scores, pool_tokens_, pool_ == 0 ? Pool1d::Kind::kAvg : Pool1d::Kind::kMax});
  }

 private:
  std::int32_t window_;
  float gamma_;
  std::size_t pool_;
  std::int32_t pool_tokens_;
};

KVLAB_REGISTER(Scorer, WindowMeanVariance, "window_mean_variance",
               "mean and variance of the attention received from the prompt's last queries",
               "CAKE: Qin et al. 2025, arXiv:2503.12491, eq. 9");

}  // namespace

}  // namespace kvlab
