#include <cmath>

#include "policies/kv/allocator/layer_allocator.h"
#include "policies/kv/allocator/layer_values.h"
#include "policies/kv/allocator/split_total.h"

namespace kvlab {

namespace {

// Weights are (1 - (s - min s) / (max s - min s))^power; s: offline mean cosine of keys with and without other blocks. Other layers pay for
// least shares by weight (ours).
class KeySimilarityLayers final : public LayerAllocator {
 public:
  explicit KeySimilarityLayers(Params& p)
      : similarity_(p, "similarity", -1, 1, "COSINE"),
        power_(p.optional<double>("power", 1.1, 0, 100, "of the weights; 0: all alike")),
        least_(p.optional<double>("least_frac", 0.25, 0, 1, "least tokens of a layer, in budgets")) {}

  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return similarity_.refuses(model); }

 private:
  [[nodiscard]] std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t n) const override {
    if (target >= n) return n;
    const auto count = static_cast<std::size_t>(model.num_layers);
    const std::vector<double> weights = weights_of(model.num_layers);
    const auto least = static_cast<std::int32_t>(least_ * target);
    const std::vector<std::int32_t> floor(count, least), cap(count, n);
    std::vector<std::int32_t> counts(count);
    split_total(weights, std::int64_t{target} * model.num_layers, floor, cap, Excess::kByWeight, counts);
    return counts[static_cast<std::size_t>(layer)];
  }

  [[nodiscard]] std::vector<double> weights_of(std::int32_t layers) const {
    std::vector<double> weights(static_cast<std::size_t>(layers), 1.0);
    if (similarity_.is_empty()) return weights;
    const auto [low, high] = similarity_.range();
    const double range = high - low;
    for (std::int32_t l = 0; l < layers && range > 0; ++l)
      weights[static_cast<std::size_t>(l)] = std::pow(1 - (similarity_.of(l) - low) / range, power_);
    return weights;
  }

  LayerValues similarity_;
  double power_, least_;
};

KVLAB_REGISTER(Allocator, KeySimilarityLayers, "key_similarity_layers",
               "layers whose keys change more when blocks are computed alone get more of the budget",
               "EpiCache: Kim et al. 2025, arXiv:2509.17396");

}  // namespace

}  // namespace kvlab
