#include "kernels/score/recent_attention_op.h"
#include "kernels/select/copy_queries_op.h"
#include "policies/kv/scorer/key_redundancy/key_redundancy.h"
#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/selector/row_state.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

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
