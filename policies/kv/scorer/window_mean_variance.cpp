#include "kernels/attention/window_moments/window_moments.h"
#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Mean + gamma * variance, smoothed.
class WindowMeanVariance final : public Scorer {
 public:
  explicit WindowMeanVariance(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that are looked at; their tokens stay")),
        gamma_(p.optional<float>("gamma", 200, 0, 1e6, "weight of the variance")),
        pool_(p, ScorePooling::kAvg, 5) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void score(LayerStep& step, float* scores) override {
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    step.ops(WindowMoments{.kv = step.kv, .queries = window.data(), .wants_scores = true, .gamma = gamma_, .scores = scores});
    pool_.smooth(
        step, [&](std::int32_t) { return window_; }, scores);
  }

 private:
  std::int32_t window_;
  float gamma_;
  ScorePool pool_;
};

KVLAB_REGISTER(Scorer, WindowMeanVariance, "window_mean_variance",
               "mean and variance of the attention received from the prompt's last queries",
               "CAKE: Qin et al. 2025, arXiv:2503.12491, eq. 9");

}  // namespace

}  // namespace kvlab
