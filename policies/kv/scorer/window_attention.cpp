#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// The softmax sees all keys; the window is protected.
class WindowAttention final : public Scorer {
 public:
  explicit WindowAttention(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that vote; their tokens stay")),
        pool_(p, ScorePooling::kAvg, 7),
        group_(p.choice("group", {{"mean", AttentionStats::Group::kMean}, {"max", AttentionStats::Group::kMax}},
                        AttentionStats::Group::kMean, "how query heads that share a KV head vote")),
        mean_(p.choice("queries", {{"sum", false}, {"mean", true}}, false,
                       "their attention is summed, or that is divided by window_tokens")) {}
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void score(LayerStep& step, float* scores) override {
    step.ops.zero(scores, step.kv.total());
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    step.ops(AttentionStats{.kv = step.kv, .queries = window.data(), .group = group_, .sum = scores});
    if (mean_)
      step.ops(ScoreMap{step.kv.num_rows, step.kv.first, ScoreMap::Kind::kPlus, scores, 1.0F / static_cast<float>(window_), 0.0F, false,
                        nullptr, nullptr, scores});
    const auto newest = [&](std::int32_t r) { return window[static_cast<std::size_t>(step.kv.sequence(r))].count; };
    pool_.smooth(step, newest, scores);
  }

 private:
  std::int32_t window_;
  ScorePool pool_;
  AttentionStats::Group group_;
  bool mean_;
};

KVLAB_REGISTER(Scorer, WindowAttention, "window_attention", "attention received from the prompt's last queries, pooled over neighbours",
               "SnapKV: Li et al. 2024, arXiv:2404.14469, eq. 1-3");

}  // namespace

}  // namespace kvlab
