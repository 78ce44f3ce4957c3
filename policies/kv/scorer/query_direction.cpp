#include "kernels/score/token_norms_op.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/top_direction_op.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

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

}  // namespace

}  // namespace kvlab
