#include <algorithm>

#include "kernels/score/score_map_op.h"
#include "policies/kv/scorer/lag_scores_op.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/selector/row_state.h"

namespace kvlab {

namespace {

// The last full partition and the tail stay.
class LagRelative final : public Scorer {
 public:
  explicit LagRelative(Params& p)
      : sinks_(p.optional<std::int32_t>("sinks_tokens", 16, 0, 1 << 20, "first tokens, never scored")),
        lag_(p.optional<std::int32_t>("lag_tokens", 128, 1, 1 << 20, "tokens of a partition")),
        ranks_(p.flag("ranks", true, "scores become ranks within their partition, so that every partition keeps its share")),
        epsilon_(p.optional<float>("epsilon", 1e-6F, 0.0F, 1.0F, "added to the range of a channel")),
        recent_first_(p.choice("tail", {{"recent", true}, {"equal", false}}, true,
                               "which unscored tokens stay where the budget is smaller than they are")),
        revisits_(p.flag("revisits", false, "tokens that survived a partition's selection are scored again at the next one")) {}

  [[nodiscard]] Protected protects() const override { return {recent_first_ ? sinks_ : 0, 0}; }

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    const std::int32_t* zero = per_row(step, [](std::int32_t) { return 0; });
    const std::int32_t* begin =
        per_row(step, [&](std::int32_t r) { return std::min(kv.len[r], std::max(sinks_, revisits_ ? 0 : settled_.at(step, r))); });
    const std::int32_t* partitions = per_row(step, [&](std::int32_t r) { return std::max(0, (kv.len[r] - begin[r]) / lag_ - 1); });
    std::int32_t* tail = per_row(step, [&](std::int32_t r) { return begin[r] + partitions[r] * lag_; });
    step.ops(ScoreMap::fill(kv.num_rows, kv.first, zero, begin, recent_first_ ? kSettled : kTail, 0.0F, scores));
    step.ops(ScoreMap::fill(kv.num_rows, kv.first, tail, kv.len, kTail, recent_first_ ? kRecency : 0.0F, scores));
    if (!recent_first_) {  // too short to score: sinks, then latest tokens
      for (std::int32_t r = 0; r < kv.num_rows; ++r)
        if (partitions[r] > 0) tail[r] = kv.len[r];
      step.ops(ScoreMap::fill(kv.num_rows, kv.first, tail, kv.len, 0.0F, kRecency, scores));
    }
    step.ops(LagScores{kv, begin, partitions, lag_, ranks_, epsilon_, scores});
  }

  void refine(LayerStep& step, std::int32_t* keep, float*) override {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      if (keep[r] >= step.kv.len[r]) continue;
      const std::int32_t begin = std::min(step.kv.len[r], std::max(sinks_, settled_.at(step, r)));
      const std::int32_t scored = std::max(0, (step.kv.len[r] - begin) / lag_ - 1) * lag_;
      settled_.at(step, r) = std::max(0, keep[r] - (step.kv.len[r] - begin - scored));
    }
  }

 private:
  // Scores are < 1; tail and settled tokens rank above.
  static constexpr float kTail = 1.0F, kSettled = 4.0F, kRecency = 1e-6F;

  std::int32_t sinks_, lag_;
  bool ranks_;
  float epsilon_;
  bool recent_first_, revisits_;
  PerRow<std::int32_t> settled_{*this};
};

KVLAB_REGISTER(Scorer, LagRelative, "lag_relative", "spread of keys and values relative to the tokens that follow",
               "LagKV: Liang et al. 2025, arXiv:2504.04704");

}  // namespace

}  // namespace kvlab
