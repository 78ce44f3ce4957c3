#include "policies/kv/scorer/expected_attention/expected_attention.h"

#include "kernels/attention/query_moments/query_moments.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/scorer/leverage/leverage.h"
#include "policies/kv/scorer/scorer_wrapper.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Future queries are normal with the prompt's moments; the value norm is a factor.
class ExpectedAttentionScore final : public Scorer {
 public:
  explicit ExpectedAttentionScore(Params& p)
      : num_future_(p.optional<std::int32_t>("future_tokens", 512, 1, 1 << 20, "positions after the prompt that RoPE is averaged over")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens: always kept, and left out of the statistics")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "last tokens, always kept")),
        covariance_(p.flag("covariance", true, "uses the covariance of queries, not their mean alone")),
        unbiased_(p.choice("divisor", {{"n", false}, {"n_minus_1", true}}, false, "divisor of the covariance")),
        value_norm_(p.flag("value_norm", true, "multiplies by the norm of the value")),
        epsilon_(p.optional<float>("epsilon", 0.0F, 0.0F, 1.0F, "added to the attention before the value's norm")) {}

  [[nodiscard]] Needs needs() const override { return {.pre_rope_queries = true, .turns = true}; }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_}; }

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    const std::int64_t heads = static_cast<std::int64_t>(kv.num_rows) * kv.group, d = kv.head_dim;
    QueryMoments moments{
        step.in.pre_rope_queries.data(), kv.num_sequences(), kv.kv_heads * kv.group, kv.head_dim, sinks_, unbiased_, covariance_};
    const std::vector<float> frequencies = rope_frequencies(step, num_future_);
    moments.frequencies = or_null(frequencies);
    moments.magnitude = static_cast<float>(step.model.rope.scaling.attention_factor);
    moments.future_begin = end_positions(step);
    moments.num_future = num_future_;
    moments.mean = step.ops.floats(heads * d);
    moments.covariance = covariance_ ? step.ops.floats(heads * d * d) : nullptr;
    step.ops(moments);
    step.ops(ExpectedAttention{kv, moments.mean, covariance_, moments.covariance, sinks_, scores});
    if (!value_norm_) return;
    float* norms = step.ops.floats(kv.total());
    step.ops(TokenNorms{kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2, norms});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kTimes, scores, 1.0F, epsilon_, true, norms, nullptr, scores});
  }

 private:
  std::int32_t num_future_, sinks_, recent_;
  bool covariance_, unbiased_, value_norm_;
  float epsilon_;
};

KVLAB_REGISTER(Scorer, ExpectedAttentionScore, "expected_attention",
               "attention expected from queries like the prompt's at future positions",
               "Expected Attention: Devoto et al. 2025, arXiv:2510.00636");

class CapKv final : public Scorer {
 public:
  explicit CapKv(Params& p)
      : num_future_(p.optional<std::int32_t>("future_tokens", 512, 1, 1 << 20, "positions after the prompt that RoPE is averaged over")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens: always kept, and left out of the statistics")),
        tau_(p.optional<float>("tau", 5.0F, 0.0F, 1e3F, "sharpness of the weights exp(tau cos)")),
        epsilon_(p.optional<float>("epsilon", 1e-6F, 0.0F, 1.0F, "added to the weights in the sum over values")) {}

  [[nodiscard]] Needs needs() const override { return {.pre_rope_queries = true, .turns = true}; }
  [[nodiscard]] Protected protects() const override { return {sinks_, 0}; }

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    QueryMoments moments{step.in.pre_rope_queries.data(), kv.num_sequences(), kv.kv_heads * kv.group, kv.head_dim, sinks_, false, false};
    const std::vector<float> frequencies = rope_frequencies(step, num_future_);
    moments.frequencies = or_null(frequencies);
    moments.magnitude = static_cast<float>(step.model.rope.scaling.attention_factor);
    moments.future_begin = end_positions(step);
    moments.num_future = num_future_;
    moments.mean = step.ops.floats(static_cast<std::int64_t>(kv.num_rows) * kv.group * kv.head_dim);
    step.ops(moments);
    step.ops(Leverage{
        .kv = kv, .kind = Leverage::Kind::kValues, .mean = moments.mean, .sinks = sinks_, .tau = tau_, .epsilon = epsilon_, .out = scores});
  }

 private:
  std::int32_t num_future_, sinks_;
  float tau_, epsilon_;
};

KVLAB_REGISTER(Scorer, CapKv, "value_leverage", "leverage of values weighted by the fit of keys to the mean future query",
               "CapKV: Yang et al. 2026, arXiv:2604.25975, as in kvpress 0.5.4");

}  // namespace

}  // namespace kvlab
