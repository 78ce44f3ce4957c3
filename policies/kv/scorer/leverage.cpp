#include "policies/kv/scorer/leverage/leverage.h"

#include <vector>

#include "base/config/param_reader.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "kernels/score/token_scores_op.h"
#include "policies/kv/scorer/chunk_attention/chunk_attention.h"
#include "policies/kv/scorer/row_parts.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/standardize_op.h"
#include "policies/kv/step.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Non-causal attention inside a prompt chunk times the value norm, smoothed, standardised over a sequence's heads; 0 for decoded tokens.
class ChunkAttentionScore {
 public:
  explicit ChunkAttentionScore(Params& p)
      : chunk_(p.optional<std::int32_t>("chunk_tokens", 256, 1, 1 << 16, "tokens that attend to one another")),
        pool_(p.optional<std::int32_t>("pool_tokens", 3, 1, 1023, "neighbours averaged, odd")),
        padded_(p.flag("padded", false, "a short last chunk is filled up with zeros that take part, as in kvpress")) {
    if (pool_ % 2 == 0) p.fail_at("pool_tokens", "'pool_tokens' must be odd, so that the pool is centred");
  }

  void observe(LayerStep& step, std::int32_t channel) {
    prompt_.assign(step.in.step.begin(), step.in.step.end());
    for (std::size_t s = 0; s < step.seqs.size(); ++s)
      if (step.seqs[s].decoding()) prompt_[s].count = 0;
    step.ops(ChunkAttention{step.kv, prompt_.data(), chunk_, false, padded_, channel});
  }

  void score(LayerStep& step, std::int32_t channel, float* scores) const {
    const KvRows& kv = step.kv;
    float* norms = step.ops.floats(kv.total());
    step.ops(TokenScores{kv, TokenScores::Kind::kWord, channel, 0, nullptr, nullptr, scores});
    step.ops(TokenNorms{kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2, norms});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kTimes, scores, 1.0F, 0.0F, true, norms, nullptr, scores});
    if (pool_ > 1) step.ops(Pool1d{kv.num_rows, kv.first, nullptr, kv.len, scores, pool_, Pool1d::Kind::kAvg});
    step.ops(Standardize{kv.num_sequences(), kv.kv_heads, kv.first, scores});
  }

 private:
  std::int32_t chunk_, pool_;
  bool padded_;
  std::vector<Queries> prompt_;
};

class NoncausalChunk final : public Scorer {
 public:
  explicit NoncausalChunk(Params& p) : attention_(p) {}
  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void observe(LayerStep& step) override { attention_.observe(step, first_word()); }
  void score(LayerStep& step, float* scores) override { attention_.score(step, first_word(), scores); }

 private:
  ChunkAttentionScore attention_;
};

KVLAB_REGISTER(Scorer, NoncausalChunk, "noncausal_chunk", "attention received inside chunks without a causal mask, times the value's norm",
               "Compactor: Chari and Van Durme 2025, arXiv:2507.08143");

void standardised_leverage(LayerStep& step, std::int32_t sketch_dim, float* scores) {
  step.ops(Leverage{.kv = step.kv,
                    .keys = step.in.pre_rope_keys.data(),
                    .sketch_dim = std::min(sketch_dim, step.kv.head_dim),
                    .seed = step.seed,
                    .out = scores});
  step.ops(Standardize{step.kv.num_sequences(), step.kv.kv_heads, step.kv.first, scores});
}

std::int32_t read_sketch(Params& p) {
  return p.optional<std::int32_t>("sketch_dim", 48, 1, 1 << 12, "dimensions that keys are randomly projected to, at most the head's");
}

// Uses keys before RoPE.
class KeyLeverage final : public Scorer {
 public:
  explicit KeyLeverage(Params& p) : sketch_dim_(read_sketch(p)) {}
  [[nodiscard]] Needs needs() const override { return {.pre_rope_keys = true}; }
  void score(LayerStep& step, float* scores) override { standardised_leverage(step, sketch_dim_, scores); }

 private:
  std::int32_t sketch_dim_;
};

// kvpress 0.5.5's weight for budgets in tokens.
constexpr double kWeightOfCount = 0.35;

// Default weight: the dropped share.
class Compactor final : public Scorer {
 public:
  explicit Compactor(Params& p)
      : attention_(p),
        sketch_dim_(read_sketch(p)),
        weight_(p.optional<double>("leverage_weight", 0.0, 0.0, 100.0, "weight of the leverage; 0: the share of tokens that is dropped")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 8, 0, 1 << 20, "first tokens, always kept")),
        recent_(p.optional<std::int32_t>("recent_tokens", 4, 0, 1 << 20, "last tokens, always kept")),
        cuts_ends_(p.choice("ends", {{"scored", false}, {"left_out", true}}, false,
                            "always kept tokens are scored with the others; or left out of attention, leverage and their moments, as in "
                            "kvpress, whose chunks begin after the first tokens")) {}
  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .pre_rope_keys = true}; }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void set_budget(const Budget& budget) override { budget_ = budget; }
  void observe(LayerStep& step) override {
    if (!cuts_ends_) return attention_.observe(step, first_word());
    const std::vector<RowPart> middle = middles(step);
    const RowParts parts(step, middle, RowParts::Positions::kOfSequence);
    LayerStep part = parts.step();
    std::vector<Queries> queries;
    for (std::size_t s = 0; s < middle.size(); ++s) queries.push_back(middle_queries(step, s, middle[s].begin + middle[s].len));
    part.in.step = queries;
    attention_.observe(part, first_word());
  }
  void score(LayerStep& step, float* scores) override {
    if (cuts_ends_) return score_middles(step, scores);
    attention_.score(step, first_word(), scores);
  }

  [[nodiscard]] bool ranks_after_counts() const override { return !cuts_ends_; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    if (cuts_ends_) return;
    const KvRows& kv = step.kv;
    float* leverage = step.ops.floats(kv.total());
    standardised_leverage(step, sketch_dim_, leverage);
    weights_.assign(static_cast<std::size_t>(kv.num_rows), static_cast<float>(weight_));
    for (std::int32_t r = 0; r < kv.num_rows && weight_ == 0; ++r)
      if (kv.len[r] > 0) weights_[static_cast<std::size_t>(r)] = 1.0F - static_cast<float>(keep[r]) / static_cast<float>(kv.len[r]);
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, scores, 1.0F, 0.0F, true, leverage, weights_.data(), scores});
  }

 private:
  // Tokens that are neither first nor last, in prefill. Rows hold all tokens so far.
  [[nodiscard]] std::vector<RowPart> middles(const LayerStep& step) const {
    std::vector<RowPart> middle;
    for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s) {
      const SeqStep& seq = step.seqs[static_cast<std::size_t>(s)];
      const std::int32_t* len = step.kv.len + s * step.kv.kv_heads;
      const std::int32_t held = seq.decoding() ? 0 : std::min(seq.end(), *std::min_element(len, len + step.kv.kv_heads));
      const std::int32_t begin = std::min(sinks_, held), end = std::min(held, seq.prompt_tokens - recent_);
      middle.push_back({s, begin, std::max(0, end - begin)});
    }
    return middle;
  }
  // Positions count from the first of them.
  [[nodiscard]] Queries middle_queries(const LayerStep& step, std::size_t s, std::int32_t end) const {
    Queries queries = queries_from(step.in.step[s], sinks_, step.model);
    queries.count = std::clamp(end - queries.first_position, 0, queries.count);
    queries.first_position -= sinks_;
    return queries;
  }

  void score_middles(LayerStep& step, float* scores) {
    clear_scores(step, scores);
    const RowParts parts(step, middles(step), RowParts::Positions::kOfSequence);
    LayerStep part = parts.step();
    const KvRows& kv = part.kv;
    float *attention = step.ops.floats(kv.total()), *leverage = step.ops.floats(kv.total());
    attention_.score(part, first_word(), attention);
    standardised_leverage(part, sketch_dim_, leverage);
    const double weight = weight_ > 0 ? weight_ : budget_.tokens > 0 ? kWeightOfCount : budget_.dropped_frac();
    weights_.assign(static_cast<std::size_t>(kv.num_rows), static_cast<float>(weight));
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, attention, 1.0F, 0.0F, true, leverage, weights_.data(), attention});
    parts.put_back(attention, scores);
  }

  ChunkAttentionScore attention_;
  std::int32_t sketch_dim_;
  double weight_;
  std::int32_t sinks_, recent_;
  bool cuts_ends_;
  Budget budget_;
  std::vector<float> weights_;  // per row
};

KVLAB_REGISTER(Scorer, KeyLeverage, "leverage", "statistical leverage of keys in a random sketch",
               "Compactor: Chari and Van Durme 2025, arXiv:2507.08143");
KVLAB_REGISTER(Scorer, Compactor, "compactor", "non-causal chunk attention plus leverage of keys",
               "Compactor: Chari and Van Durme 2025, arXiv:2507.08143");

}  // namespace

}  // namespace kvlab
