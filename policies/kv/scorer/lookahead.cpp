#include "kernels/attention/pass_attention/pass_attention.h"
#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// By the pass "lookahead"; LAQ++ with a window.
class Lookahead final : public Scorer {
 public:
  explicit Lookahead(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 8, 0, 4096, "last prompt queries that vote too; their tokens stay")),
        pool_(p, ScorePooling::kMax, 7) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_, .pass = passes::kLookahead}; }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void score(LayerStep& step, float* scores) override {
    step.ops(PassAttention{.kv = step.kv,
                           .pass = step.in.pass,
                           .queries = PassAttention::Reduce::kSum,
                           .group = PassAttention::Group::kMean,
                           .scores = scores});
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    if (window_ > 0) {
      step.ops(AttentionStats{.kv = step.kv, .queries = window.data(), .sum = scores});
    }
    pool_.smooth(
        step, [&](std::int32_t) { return window_; }, scores);
  }

 private:
  std::int32_t window_;
  ScorePool pool_;
};

KVLAB_REGISTER(Scorer, Lookahead, "lookahead", "attention of pseudo tokens decoded ahead, and of the prompt's last queries",
               "LAQ: Wang et al. 2025, arXiv:2505.20334");

}  // namespace

}  // namespace kvlab
