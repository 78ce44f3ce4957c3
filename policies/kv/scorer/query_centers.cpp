#include <fmt/format.h>

#include "kernels/attention/query_moments/query_moments.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "policies/kv/scorer/expected_attention/expected_attention.h"
#include "policies/kv/scorer/leverage/leverage.h"
#include "policies/kv/scorer/query_centers_op.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/scorer_wrapper.h"
#include "policies/kv/selector/row_state.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// With a term for the queries' spread. Statistics come from `weights`: q_mean [layers, q_heads, head_dim], q_abs_mean [layers, q_heads,
// head_dim / 2] (our names), or from the prompt's queries (ours; outside the cache). Ranked per layer and KV head.
class QueryCenterScore final : public Scorer {
 public:
  explicit QueryCenterScore(Params& p)
      : offsets_(p.optional<std::int32_t>("offsets", 17, 1, 24, "later positions that count: 1, 2, 4, ... after the newest")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "latest tokens that are never evicted")),
        keeps_prompt_(p.flag("keep_prompt", false, "what is left of the prompt is never evicted; it counts against the budget")) {}

  [[nodiscard]] Needs needs() const override { return {.pre_rope_queries = weights_ == nullptr, .turns = true}; }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kIfGiven; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    weights->require(kMean);
    weights->require(kSize);
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (model.head_dim % 2 != 0) return fmt::format("scorer 'query_centers' takes channels in pairs; head_dim is {}", model.head_dim);
    if (weights_ == nullptr) return "";
    const std::string why = weights_->refuses(kMean, {model.num_layers, model.q_heads, model.head_dim}, "layers, query heads, channels");
    if (!why.empty()) return why;
    return weights_->refuses(kSize, {model.num_layers, model.q_heads, model.head_dim / 2}, "layers, query heads, pairs of channels");
  }
  [[nodiscard]] Protected protects() const override { return {0, recent_, keeps_prompt_}; }

  void observe(LayerStep& step) override {
    if (weights_ != nullptr) return;
    std::vector<Queries> chunk;
    for (std::size_t s = 0; s < step.seqs.size(); ++s)
      chunk.push_back(queries_from(step.in.pre_rope_queries[s], step.seqs[s].seen_tokens, step.model));
    if (std::all_of(chunk.begin(), chunk.end(), [](const Queries& q) { return q.count == 0; })) return;
    step.ops(QueryCenters{chunk.data(), step.kv.num_sequences(), step.model.q_heads, step.model.head_dim, sums(step), sizes(step)});
  }

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    std::vector<const float*> means, sizes_of;
    std::int32_t* count = step.ops.host_ints(kv.num_sequences());
    float *const *sum = weights_ == nullptr ? sums(step) : nullptr, *const *size = weights_ == nullptr ? sizes(step) : nullptr;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const SeqStep& seq = step.seqs[static_cast<std::size_t>(s)];
      count[s] = weights_ == nullptr ? std::max(1, std::min(seq.end(), seq.prompt_tokens)) : 1;
      means.push_back(weights_ == nullptr ? sum[s] : trained(step, kMean, step.model.head_dim));
      sizes_of.push_back(weights_ == nullptr ? size[s] : trained(step, kSize, step.model.head_dim / 2));
    }
    const std::vector<float> frequencies = rope_frequencies(step, 0);
    step.ops(CenterScores{kv, means.data(), sizes_of.data(), count, or_null(frequencies), end_positions(step), offsets_, scores});
  }

 private:
  static constexpr const char *kMean = "q_mean", *kSize = "q_abs_mean";

  float* const* sums(LayerStep& step) {
    const std::int64_t floats = std::int64_t{step.model.q_heads} * step.model.head_dim;
    return sum_.sequences(step, [floats](std::int32_t) { return floats; });
  }
  float* const* sizes(LayerStep& step) {
    const std::int64_t floats = std::int64_t{step.model.q_heads} * (step.model.head_dim / 2);
    return size_.sequences(step, [floats](std::int32_t) { return floats; });
  }
  const float* trained(const LayerStep& step, const char* tensor, std::int64_t per_head) {
    if (!step.ops.computes()) return nullptr;
    return placed_.floats(*weights_, tensor, step.memory()) + step.layer * step.model.q_heads * per_head;
  }

  std::int32_t offsets_, recent_;
  bool keeps_prompt_;
  RowMemory<float> sum_{*this}, size_{*this};  // of the prompt's queries
  std::shared_ptr<const TrainedTensors> weights_;
  PlacedTensors placed_;
};

KVLAB_REGISTER(Scorer, QueryCenterScore, "query_centers", "products with the mean query before RoPE at later positions",
               "TriAttention: Mao et al. 2026, arXiv:2604.04921");

// From `weights`: q_filters [layers, kv_heads, head_dim] as published, pointing away from queries (score: minus the product), or from the
// prompt's last queries (ours).
class QueryDirection final : public Scorer {
 public:
  explicit QueryDirection(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 128, 1, 1 << 16, "last prompt queries that the direction comes from")),
        iterations_(p.optional<std::int32_t>("iterations", 32, 1, 1 << 10, "steps of the power iteration")) {}
  [[nodiscard]] Needs needs() const override { return {.window_queries = weights_ == nullptr ? window_ : 0}; }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kIfGiven; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    weights->require(kFilters);
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (weights_ == nullptr) return "";
    return weights_->refuses(kFilters, {model.num_layers, model.kv_heads, model.head_dim}, "layers, KV heads, channels");
  }
  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    float* direction = step.ops.floats(static_cast<std::int64_t>(kv.num_rows) * kv.head_dim);
    if (weights_ != nullptr) {
      fill(step, direction);
      step.ops(TokenNorms{kv, TokenNorms::Of::kKey, TokenNorms::Kind::kDot, scores, direction, -1.0F});
      return;
    }
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    step.ops(TopDirection{window.data(), kv.num_sequences(), kv.kv_heads, kv.group, kv.head_dim, iterations_, direction});
    step.ops(TokenNorms{kv, TokenNorms::Of::kKey, TokenNorms::Kind::kDot, scores, direction});
  }
  [[nodiscard]] bool comparable_across_heads() const override { return false; }

 private:
  static constexpr const char* kFilters = "q_filters";

  void fill(LayerStep& step, float* to) {
    if (!step.ops.computes()) return;
    if (filters_.size() == 0 || filters_.memory().cuda() != step.memory().cuda()) {
      const std::span<const float> all = weights_->floats(kFilters);
      filters_.settle_in(step.memory());
      filters_.resize(0);
      filters_.append_from_host(all.data(), static_cast<std::int64_t>(all.size()));
    }
    const std::int64_t floats = std::int64_t{step.kv.kv_heads} * step.kv.head_dim;
    for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s)
      step.memory().copy(to + s * floats, filters_.data() + step.layer * floats, floats * std::int64_t{sizeof(float)});
  }

  std::int32_t window_, iterations_;
  std::shared_ptr<const TrainedTensors> weights_;
  TensorArray<float> filters_;
};

KVLAB_REGISTER(Scorer, QueryDirection, "query_direction", "projection of keys on the main direction of queries",
               "Q-Filters: Godey et al. 2025, arXiv:2503.02812");

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
