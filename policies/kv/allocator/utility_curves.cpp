#include <cmath>

#include "policies/kv/allocator/counts.h"
#include "policies/kv/recipe/trained_tensors.h"

namespace kvlab {

namespace {

// "prune_ratios" [99, layers, KV heads]: line i - 1 has the dropped shares at i %.
class UtilityCurves final : public Allocator {
 public:
  explicit UtilityCurves(Params&) {}

  [[nodiscard]] Needs needs() const override { return {.weights = weights_ == nullptr}; }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kAlways; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    weights->require(kTensor);
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    return weights_ == nullptr ? "" : weights_->refuses(kTensor, {kLines, model.num_layers, model.kv_heads}, "LU-KV's curves");
  }
  [[nodiscard]] bool splits_heads() const override { return true; }
  void set_budget(const Budget& budget) override { budget_ = budget; }

  // Without curves, the budget.
  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                      std::int32_t n) const override {
    if (weights_ == nullptr || target >= n) return std::min(target, n);
    const std::int64_t at = (line(target, n) * model.num_layers + layer) * model.kv_heads;
    std::vector<float> shares;
    for (const float dropped : weights_->floats(kTensor).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(model.kv_heads)))
      shares.push_back(1.0F - dropped);
    return tokens_by_remainder(shares, head, n);
  }

 private:
  static constexpr const char* kTensor = "prune_ratios";
  static constexpr std::int64_t kLines = 99;

  [[nodiscard]] std::int64_t line(std::int32_t target, std::int32_t n) const {
    const double dropped = budget_.frac > 0 ? budget_.dropped_frac() : 1 - static_cast<double>(target) / n;
    return std::clamp<std::int64_t>(std::llround(std::nearbyint(dropped * 100)) - 1, 0, kLines - 1);
  }

  Budget budget_;
  std::shared_ptr<const TrainedTensors> weights_;
};

KVLAB_REGISTER(Allocator, UtilityCurves, "utility_curves", "shares per layer and head from curves found offline, one for each ratio",
               "LU-KV: Tang et al. 2026, arXiv:2602.08585");

}  // namespace

}  // namespace kvlab
