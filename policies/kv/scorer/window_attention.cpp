#include <algorithm>

#include "kernels/attention_stats/attention_stats.h"
#include "kernels/pool1d/pool1d.h"
#include "kernels/score_map/score_map.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Attention that the last w queries of the prompt pay to each earlier token, smoothed over its neighbours. The softmax sees all
// keys, the window's own are protected. SnapKV, Li et al. 2024, arXiv:2404.14469, eq. 1-3.
class WindowAttention final : public Scorer {
 public:
  explicit WindowAttention(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that vote; their tokens stay")),
        pool_(p.choice("pool", {"avg", "max", "none"}, 0, "how scores are smoothed over neighbouring tokens")),
        pool_tokens_(p.optional<std::int32_t>("pool_tokens", 7, 1, 1023, "neighbours pooled, odd")),
        group_(p.choice("group", {"mean", "max"}, 0, "how query heads that share a KV head vote")),
        mean_(p.choice("queries", {"sum", "mean"}, 0, "their attention is summed, or that is divided by window_tokens") == 1) {
    if (pool_tokens_ % 2 == 0) p.fail_at("pool_tokens", "'pool_tokens' must be odd, so that the pool is centred");
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.window_queries = window_;
    return needs;
  }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void score(LayerStep& step, float* scores) override {
    step.ops.zero(scores, step.kv.total());
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    AttentionStats stats;
    stats.kv = step.kv;
    stats.queries = window.data();
    stats.group = group_ == 0 ? AttentionStats::Group::kMean : AttentionStats::Group::kMax;
    stats.sum = scores;
    step.ops(stats);
    if (mean_)
      step.ops(ScoreMap{step.kv.num_rows, step.kv.first, ScoreMap::Kind::kPlus, scores, 1.0F / static_cast<float>(window_), 0.0F, false,
                        nullptr, nullptr, scores});
    if (pool_ == 2) return;
    std::int32_t* older = step.ops.host_ints(step.kv.num_rows);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      older[r] = std::max(0, step.kv.len[r] - window[static_cast<std::size_t>(step.kv.sequence(r))].count);
    step.ops(Pool1d{step.kv.num_rows, step.kv.first, older, scores, pool_tokens_, pool_ == 0 ? Pool1d::Kind::kAvg : Pool1d::Kind::kMax});
  }

 private:
  std::int32_t window_;
  std::size_t pool_;
  std::int32_t pool_tokens_;
  std::size_t group_;
  bool mean_;
};

KVLAB_REGISTER(Scorer, WindowAttention, "window_attention", "attention received from the prompt's last queries, pooled over neighbours",
               "SnapKV: Li et al. 2024, arXiv:2404.14469, eq. 1-3");

}  // namespace

}  // namespace kvlab
