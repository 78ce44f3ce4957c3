#include <algorithm>
#include <limits>

#include "kernels/score/anchor_cosine_op.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/scorer/lag_scores_op.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/selector/row_state.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Section 3. Over all heads' concatenated keys: QuickVideo.
class KeyNorm final : public Scorer {
 public:
  explicit KeyNorm(Params& p)
      : shared_(p.choice("heads", {{"own", false}, {"shared", true}}, false, "norm of each head's key, or over all KV heads at once")),
        comparable_(p.flag("compare_heads", false, "norms of different heads may be ranked together, as kvpress does")) {}

  [[nodiscard]] bool is_order_free(const FewTokens& few) const override { return few.alike || !shared_; }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenNorms{step.kv, TokenNorms::Of::kKey, shared_ ? TokenNorms::Kind::kL2Squared : TokenNorms::Kind::kL2, scores});
    if (shared_) step.ops(ReduceHeads{step.kv, ReduceHeads::Kind::kRootOfSum, scores});
    step.ops(ScoreMap{step.kv.num_rows, step.kv.first, ScoreMap::Kind::kPlus, scores, -1.0F, 0.0F, false, nullptr, nullptr, scores});
  }
  [[nodiscard]] bool comparable_across_heads() const override { return comparable_; }

 private:
  bool shared_, comparable_;
};

KVLAB_REGISTER(Scorer, KeyNorm, "key_norm", "keys of small norm stay", "Knorm: Devoto et al. 2024, arXiv:2406.11430");

// Section 4. Mean over KV heads; decoded tokens by their page's mean, never the newest page.
class ValueKeyNorm final : public Scorer {
 public:
  explicit ValueKeyNorm(Params& p)
      : page_(p.optional<std::int32_t>("page_tokens", 16, 1, 1 << 16, "tokens of a page, freed together in decode")),
        shared_(p.choice("heads", {{"shared", true}, {"own", false}}, true, "one set for all KV heads, or one each")) {}

  // Whole pages leave, so whole pages stay.
  [[nodiscard]] bool is_order_free(const FewTokens& few) const override { return few.alike && few.unit == page_; }
  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    float* keys = step.ops.floats(kv.total());
    step.ops(TokenNorms{kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2, scores});
    step.ops(TokenNorms{kv, TokenNorms::Of::kKey, TokenNorms::Kind::kL2, keys});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kOver, scores, 1.0F, 0.0F, true, keys, nullptr, scores});
    if (shared_) step.ops(ReduceHeads{kv, ReduceHeads::Kind::kMean, scores});
    std::int32_t *paged = step.ops.host_ints(kv.num_rows), *newest = step.ops.host_ints(kv.num_rows);
    bool decodes = false;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const bool decoding = step.seqs[static_cast<std::size_t>(kv.sequence(r))].decoding();
      newest[r] = decoding && kv.len[r] > 0 ? (kv.len[r] - 1) / page_ * page_ : kv.len[r];
      paged[r] = decoding ? newest[r] : 0;
      decodes |= decoding;
    }
    if (!decodes) return;
    step.ops(Pool1d{kv.num_rows, kv.first, nullptr, paged, scores, page_, Pool1d::Kind::kMean});
    step.ops(ScoreMap::fill(kv.num_rows, kv.first, newest, kv.len, std::numeric_limits<float>::infinity(), 0.0F, scores));
  }

 private:
  std::int32_t page_;
  bool shared_;
};

KVLAB_REGISTER(Scorer, ValueKeyNorm, "value_key_norm", "value norm over key norm, by whole pages in decode",
               "PagedEviction: Chitty-Venkata et al. 2025, arXiv:2509.04377");

// Minus the cosine with the mean of the held, normalised keys.
class KeyDiversity final : public Scorer {
 public:
  explicit KeyDiversity(Params&) {}

  void score(LayerStep& step, float* scores) override {
    step.ops(AnchorCosine{step.kv, per_row(step, [](std::int32_t) { return 0; }), step.kv.len, true, -1.0F, scores});
  }
};

KVLAB_REGISTER(Scorer, KeyDiversity, "key_diversity", "keys least like the mean key stay", "KeyDiff: Park et al. 2025, arXiv:2504.15364");

// Section 3. Norms are shares of a window of neighbours.
class Cur final : public Scorer {
  enum class Leverage : std::uint8_t { kProduct, kMean, kKey, kValue };

 public:
  explicit Cur(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 16, 1, 1 << 20, "neighbours that norms are relative to")),
        local_(p.choice("relative_to", {{"window", true}, {"prompt", false}}, true, "norms are shares of their window, or of the prompt")),
        leverage_(p.choice(
            "leverage", {{"product", Leverage::kProduct}, {"mean", Leverage::kMean}, {"key", Leverage::kKey}, {"value", Leverage::kValue}},
            Leverage::kProduct, "of key and value: their product, their mean, or one of them")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, always kept")) {}

  [[nodiscard]] Protected protects() const override { return {sinks_, 0}; }

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    const bool both = leverage_ == Leverage::kProduct || leverage_ == Leverage::kMean;
    float* values = both ? step.ops.floats(kv.total()) : scores;
    if (leverage_ != Leverage::kValue) step.ops(TokenNorms{kv, TokenNorms::Of::kKey, TokenNorms::Kind::kL2Squared, scores});
    if (leverage_ != Leverage::kKey) step.ops(TokenNorms{kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2Squared, values});
    if (local_) share(step, scores, window_);
    if (local_ && both) share(step, values, window_);
    if (both) {
      const bool adds = leverage_ == Leverage::kMean;
      step.ops(ScoreMap{kv.num_rows, kv.first, adds ? ScoreMap::Kind::kPlus : ScoreMap::Kind::kTimes, scores, 1.0F, 0.0F, true, values,
                        nullptr, scores});
    }
    share(step, scores, std::numeric_limits<std::int32_t>::max());
  }

 private:
  static void share(LayerStep& step, float* scores, std::int32_t window) {
    step.ops(Pool1d{step.kv.num_rows, step.kv.first, nullptr, step.kv.len, scores, window, Pool1d::Kind::kShare});
  }

  std::int32_t window_;
  bool local_;
  Leverage leverage_;
  std::int32_t sinks_;
};

KVLAB_REGISTER(Scorer, Cur, "cur", "squared key norm times squared value norm, relative to neighbours",
               "CurDKV: Sengupta et al. 2025, arXiv:2509.15038");

// TaR and VaN of section 3. Shallow layers smooth values more. For text a frame is one token (ours).
class InfiniPot final : public Scorer {
 public:
  explicit InfiniPot(Params& p)
      : reference_(p.optional<double>("reference_frac", 0.25, 0.0, 1.0, "newest share of the held tokens: reference, and kept")),
        redundancy_(
            p.optional<double>("redundancy_frac", 0.5, 0.0, 1.0, "share of the budget chosen by redundancy, the reference included")) {}

  void score(LayerStep& step, float* scores) override {
    step.ops(TokenNorms{step.kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2, scores});
    const std::int32_t quarter = std::min(3, 4 * step.layer / std::max(1, step.model.num_layers)), width = 7 - 2 * quarter;
    if (width > 1) step.ops(Pool1d{step.kv.num_rows, step.kv.first, nullptr, step.kv.len, scores, width, Pool1d::Kind::kAvg});
  }

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const KvRows& kv = step.kv;
    std::int32_t *newest = step.ops.host_ints(kv.num_rows), *chosen = step.ops.host_ints(kv.num_rows);
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const auto half = static_cast<std::int32_t>(redundancy_ * keep[r]);
      const std::int32_t reference = std::min(static_cast<std::int32_t>(reference_ * kv.len[r]), half);
      newest[r] = kv.len[r] - reference;
      chosen[r] = half - reference;
    }
    float* likeness = step.ops.floats(kv.total());
    step.ops(AnchorCosine{kv, newest, kv.len, false, -1.0F, likeness});
    step.ops(ScoreMap::fill(kv.num_rows, kv.first, newest, kv.len, -kInfinity, 0.0F, likeness));
    step.ops(ScoreMap::fill(kv.num_rows, kv.first, newest, kv.len, kInfinity, 0.0F, scores));
    step.ops(MarkTop{kv.num_rows, kv.first, likeness, chosen, scores});
  }
  [[nodiscard]] bool comparable_across_heads() const override { return false; }

 private:
  double reference_, redundancy_;
};

KVLAB_REGISTER(Scorer, InfiniPot, "redundancy_and_value_norm", "keys least like the newest ones, then large values",
               "InfiniPot-V: Kim et al. 2025, arXiv:2506.15745");

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
