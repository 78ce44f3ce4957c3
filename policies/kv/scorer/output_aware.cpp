#include <algorithm>

#include "kernels/score/mark_top_op.h"
#include "kernels/score/projected_norms/projected_norms.h"
#include "kernels/score/recent_attention_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/select/copy_queries_op.h"
#include "policies/kv/scorer/key_redundancy/key_redundancy.h"
#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/scorer_wrapper.h"
#include "policies/kv/selector/row_state.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

class OutputAware final : public ScorerWrapper {
 public:
  explicit OutputAware(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "output_aware"}),
        first_(p.optional<double>("first_stage_frac", 0.5, 0.0, 1.0, "share of a head's budget chosen by score alone")),
        floor_(p.optional<double>("first_stage_floor_frac", 0.0, 0.0, 1.0,
                                  "at least this share of the mean budget of the sequence's heads is chosen by score alone")),
        epsilon_(p.optional<float>("epsilon", 1e-4F, 0.0F, 1.0F, "added to scores before the product")),
        above_max_(p.choice("protect", {{"infinite", false}, {"above_max", true}}, false, "how the scorer's own tokens are protected")),
        before_counts_(p.choice("first_stage", {{"of_count", false}, {"of_budget", true}}, false,
                                "of_count: a share of what the allocator gives the head; of_budget: a share of the budget, before the "
                                "allocator ranks heads by the scores that result (kvpress's AdaKVPress over CriticalKVPress)")) {
    peer_ties_ = p.flag("peer_ties", false, "equal scores at the first stage's boundary fall as in kvpress on a CPU");
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs = ScorerWrapper::needs();
    needs.output_weights = true;
    return needs;
  }
  [[nodiscard]] Protected protects() const override { return above_max_ ? Protected{} : inner().protects(); }
  void set_budget(const Budget& budget) override {
    ScorerWrapper::set_budget(budget);
    budget_ = budget;
  }

  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    if (above_max_) protect_ends(step, inner().protects(), scores, true);
    if (!before_counts_) return;
    const KvRows& kv = step.kv;
    const std::int32_t* count = per_row(step, [&](std::int32_t r) { return std::min(kv.len[r], of_budget(kv.len[r])); });
    float* marked = step.ops.floats(kv.total());
    clear_scores(step, marked);
    mark(step, scores, count, marked);
    weigh(step, scores);
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, marked, 1.0F, 0.0F, true, scores, nullptr, scores});
  }

  [[nodiscard]] bool marks_tokens() const override { return before_counts_ || ScorerWrapper::marks_tokens(); }
  [[nodiscard]] bool ranks_after_counts() const override { return !before_counts_ || inner().ranks_after_counts(); }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    inner().refine(step, keep, scores);
    if (before_counts_) return;
    const KvRows& kv = step.kv;
    std::int32_t *first = step.ops.host_ints(kv.num_rows), *most = step.ops.host_ints(kv.num_rows);
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const std::int32_t row0 = s * kv.kv_heads, row_end = row0 + kv.kv_heads;
      std::int64_t sum = 0;
      std::int32_t largest = 0;
      for (std::int32_t r = row0; r < row_end; ++r) sum += keep[r], largest = std::max(largest, share(keep[r]));
      const std::int64_t mean = sum / kv.kv_heads;
      auto least = static_cast<std::int32_t>(floor_ * static_cast<double>(mean));
      if (floor_ > 0 && sum > 0) least = std::max(1, least);
      for (std::int32_t r = row0; r < row_end; ++r) {
        first[r] = std::min(keep[r], std::max(least, share(keep[r])));
        most[r] = std::max(largest, first[r]);
      }
    }
    mark(step, scores, first, scores, peer_ties_ ? most : nullptr);
    weigh(step, scores);
  }

 private:
  [[nodiscard]] std::int32_t share(std::int32_t keep) const { return static_cast<std::int32_t>(first_ * keep); }
  // In a row of n, from the unrounded budget.
  [[nodiscard]] std::int32_t of_budget(std::int32_t n) const {
    const double tokens = budget_.tokens > 0 ? budget_.tokens : budget_.frac * n;
    return first_ > 0 ? std::max(1, static_cast<std::int32_t>(tokens * first_)) : 0;
  }

  void mark(LayerStep& step, const float* scores, const std::int32_t* count, float* marked, const std::int32_t* ranked = nullptr) const {
    MarkTop best{step.kv.num_rows, step.kv.first, scores, count, marked};
    best.peer_ties = peer_ties_;
    best.ranked = ranked;
    step.ops(best);
  }

  // Infinite scores stay.
  void weigh(LayerStep& step, float* scores) const {
    const KvRows& kv = step.kv;
    float* norms = step.ops.floats(kv.total());
    step.ops(ProjectedNorms{kv, step.in.w_o, step.model.hidden_dim, ProjectedNorms::Kind::kL1, norms});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kTimes, scores, 1.0F, epsilon_, true, norms, nullptr, scores});
  }

  double first_, floor_;
  float epsilon_;
  bool above_max_, before_counts_;
  Budget budget_;
};

KVLAB_REGISTER(Scorer, OutputAware, "output_aware", "half by score, half by score times the value's size in the layer's output",
               "CriticalKV: Feng et al. 2025, arXiv:2502.03805, algorithm 1");

// lambda * attention - (1 - lambda) * redundancy. Queries are in a ring outside the cache; zeros there make attention uniform.
class AttentionAndRedundancy final : public Scorer {
 public:
  explicit AttentionAndRedundancy(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 8, 1, 4096, "latest queries that vote; their tokens stay")),
        pool_(p, ScorePooling::kMax, 7),
        share_(p.optional<float>("attention_share", 0.07F, 0.0F, 1.0F, "lambda: weight of attention; redundancy has the rest")),
        similar_(p.optional<float>("similar_cosine", 0.5F, -1.0F, 1.0F, "cosine above which keys repeat each other")) {}

  // The window is recomputed for a cached prefix.
  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .window_queries = window_}; }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void observe(LayerStep& step) override {
    const std::vector<Queries> latest = last_queries(step.in.step, window_, step.model);
    step.ops(CopyQueries{.num_sequences = step.kv.num_sequences(),
                         .num_heads = step.model.q_heads,
                         .head_dim = step.model.head_dim,
                         .queries = latest.data(),
                         .out = ring(step),
                         .ring_tokens = window_});
  }

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    const std::int32_t* end = end_positions(step);
    float* const* const kept = ring(step);
    std::vector<Queries> latest;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) latest.push_back({kept[s], end[s], 0});
    step.ops(
        RecentAttention{.kv = kv, .queries = latest.data(), .kind = RecentAttention::Kind::kScores, .steps = window_, .scores = scores});
    pool_.smooth(
        step, [&](std::int32_t r) { return std::min(window_, end[kv.sequence(r)]); }, scores);
    float* redundancy = step.ops.floats(kv.total());
    step.ops(KeyRedundancy{kv, similar_, redundancy});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, redundancy, share_ - 1.0F, 0.0F, false, nullptr, nullptr, redundancy});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, scores, share_, 0.0F, true, redundancy, nullptr, scores});
  }

 private:
  float* const* ring(LayerStep& step) {
    const std::int64_t floats = std::int64_t{window_} * step.model.q_heads * step.model.head_dim;
    return ring_.sequences(step, [floats](std::int32_t) { return floats; });
  }

  std::int32_t window_;
  ScorePool pool_;
  float share_, similar_;
  RowMemory<float> ring_{*this};
};

KVLAB_REGISTER(Scorer, AttentionAndRedundancy, "attention_and_redundancy",
               "attention from the latest queries, less the likeness of a key to the others", "R-KV: Cai et al. 2025, arXiv:2505.24133");

}  // namespace

}  // namespace kvlab
