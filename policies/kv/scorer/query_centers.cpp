#include "policies/kv/scorer/query_centers/query_centers.h"

#include <fmt/format.h>

#include <algorithm>

#include "policies/kv/rope_turns.h"
#include "policies/kv/scorer/center_scores/center_scores.h"
#include "policies/kv/scorer/step_arrays.h"
#include "policies/kv/trained_tensors.h"

namespace kvlab {

namespace {

// Products of keys with the mean query before RoPE at later positions, and what the spread of queries adds: cosines in the distance, one
// per frequency. TriAttention, Mao et al. 2026. The statistics come from calibration data (tensors q_mean [layers, q_heads, head_dim] and
// q_abs_mean [layers, q_heads, head_dim / 2], names of ours) or, without `weights`, from the prompt's own queries, which is our definition;
// they are then computed anew at each cut. Scores are ranked per layer and KV head; the code also takes the mean over layers.
class QueryCenterScore final : public Scorer {
 public:
  explicit QueryCenterScore(Params& p)
      : offsets_(p.optional<std::int32_t>("offsets", 17, 1, 24, "later positions that count: 1, 2, 4, ... after the newest")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "latest tokens that are never evicted")),
        keeps_prompt_(p.flag("keep_prompt", false, "what is left of the prompt is never evicted; it counts against the budget")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.turns = needs.cpu_only = true;
    needs.pre_rope_queries = weights_ == nullptr;
    return needs;
  }
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

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    const std::int64_t heads = std::int64_t{kv.num_sequences()} * step.model.q_heads, d = kv.head_dim;
    QueryCenters centers{step.in.pre_rope_queries.data(), kv.num_sequences(), step.model.q_heads, kv.head_dim};
    centers.mean = step.ops.floats(heads * d);
    centers.size = step.ops.floats(heads * (d / 2));
    if (weights_ == nullptr)
      step.ops(centers);
    else
      fill(step, centers);
    const std::vector<float> frequencies = rope_frequencies(step, 0);
    step.ops(CenterScores{kv, centers.mean, centers.size, or_null(frequencies), end_positions(step), offsets_, scores});
  }

 private:
  static constexpr const char *kMean = "q_mean", *kSize = "q_abs_mean";

  // The layer's statistics, once per sequence.
  void fill(LayerStep& step, const QueryCenters& to) const {
    if (!step.ops.computes()) return;
    const std::int64_t mean = std::int64_t{to.q_heads} * to.head_dim, size = mean / 2;
    const float *means = weights_->floats(kMean).data() + step.layer * mean, *sizes = weights_->floats(kSize).data() + step.layer * size;
    for (std::int32_t s = 0; s < to.num_sequences; ++s) {
      std::copy_n(means, mean, to.mean + s * mean);
      std::copy_n(sizes, size, to.size + s * size);
    }
  }

  std::int32_t offsets_, recent_;
  bool keeps_prompt_;
  std::shared_ptr<const TrainedTensors> weights_;  // null: none given
};

KVLAB_REGISTER(Scorer, QueryCenterScore, "query_centers", "products with the mean query before RoPE at later positions",
               "TriAttention: Mao et al. 2026, arXiv:2604.04921");

}  // namespace

}  // namespace kvlab
