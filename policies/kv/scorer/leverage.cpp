#include <algorithm>
#include <vector>

#include "kernels/score/score_map/score_map.h"
#include "policies/kv/scorer/chunk_attention.h"
#include "policies/kv/scorer/key_leverage/key_leverage.h"

namespace kvlab {

namespace {

void standardised_leverage(LayerStep& step, std::int32_t sketch_dim, float* scores) {
  step.ops(KeyLeverage{step.kv, step.in.pre_rope_keys.data(), std::min(sketch_dim, step.kv.head_dim), step.seed, scores});
  step.ops(Standardize{step.kv.num_sequences(), step.kv.kv_heads, step.kv.first, scores});
}

std::int32_t read_sketch(Params& p) {
  return p.optional<std::int32_t>("sketch_dim", 48, 1, 1 << 12, "dimensions that keys are randomly projected to, at most the head's");
}

// Keys that are hard to write as a combination of the others: their statistical leverage, before RoPE, in a random sketch.
// Compactor, Chari and Van Durme 2025.
class Leverage final : public Scorer {
 public:
  explicit Leverage(Params& p) : sketch_dim_(read_sketch(p)) {}
  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.pre_rope_keys = true;
    return needs;
  }
  void score(LayerStep& step, float* scores) override { standardised_leverage(step, sketch_dim_, scores); }

 private:
  std::int32_t sketch_dim_;
};

// Non-causal attention inside chunks plus leverage, which weighs more the more is dropped.
class Compactor final : public Scorer {
 public:
  explicit Compactor(Params& p)
      : attention_(p),
        sketch_dim_(read_sketch(p)),
        weight_(p.optional<double>("leverage_weight", 0.0, 0.0, 100.0, "weight of the leverage; 0: the share of tokens that is dropped")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 8, 0, 1 << 20, "first tokens, always kept")),
        recent_(p.optional<std::int32_t>("recent_tokens", 4, 0, 1 << 20, "last tokens, always kept")) {}
  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.pre_rope_keys = needs.step_queries = true;
    return needs;
  }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void observe(LayerStep& step) override { attention_.observe(step, first_word()); }
  void score(LayerStep& step, float* scores) override { attention_.score(step, first_word(), scores); }

  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    const KvRows& kv = step.kv;
    float* leverage = step.ops.floats(kv.total());
    standardised_leverage(step, sketch_dim_, leverage);
    weights_.assign(static_cast<std::size_t>(kv.num_rows), static_cast<float>(weight_));
    for (std::int32_t r = 0; r < kv.num_rows && weight_ == 0; ++r)
      if (kv.len[r] > 0) weights_[static_cast<std::size_t>(r)] = 1.0F - static_cast<float>(keep[r]) / static_cast<float>(kv.len[r]);
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, scores, 1.0F, 0.0F, true, leverage, weights_.data(), scores});
  }

 private:
  ChunkAttentionScore attention_;
  std::int32_t sketch_dim_;
  double weight_;
  std::int32_t sinks_, recent_;
  std::vector<float> weights_;  // per row
};

KVLAB_REGISTER(Scorer, Leverage, "leverage", "statistical leverage of keys in a random sketch",
               "Compactor: Chari and Van Durme 2025, arXiv:2507.08143");
KVLAB_REGISTER(Scorer, Compactor, "compactor", "non-causal chunk attention plus leverage of keys",
               "Compactor: Chari and Van Durme 2025, arXiv:2507.08143");

}  // namespace

}  // namespace kvlab
