#include "policies/kv/allocator/layer_allocator.h"
#include "policies/kv/allocator/layer_values.h"
#include "policies/kv/allocator/split_total.h"

namespace kvlab {

namespace {

// clip(least + importance * rest, least, factor * B); importance: offline relative output error. The rest goes to other layers.
class SensitivityLayers final : public LayerAllocator {
 public:
  explicit SensitivityLayers(Params& p)
      : importance_(p, "importance", 0, 1e12, "VALUE"),
        least_(p.optional<std::int32_t>("least_tokens", 32, 0, 1 << 20, "tokens that every layer has for certain")),
        factor_(p.optional<double>("most_factor", 3, 1, 1000, "most tokens of a layer, in budgets")) {}

  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return importance_.refuses(model); }

 private:
  [[nodiscard]] std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t n) const override {
    if (target >= n) return n;
    const std::int32_t least = std::min(least_, target);
    const auto most = static_cast<std::int32_t>(std::min<double>(n, factor_ * target));
    const auto count = static_cast<std::size_t>(model.num_layers);
    std::vector<double> weights(count, 1.0);
    for (std::int32_t l = 0; l < model.num_layers && !importance_.is_empty(); ++l) weights[static_cast<std::size_t>(l)] = importance_.of(l);
    const std::vector<std::int32_t> none(count, 0), cap(count, most - least);
    std::vector<std::int32_t> counts(count);
    split_total(weights, std::int64_t{target - least} * model.num_layers, none, cap, Excess::kByWeight, counts);
    return least + counts[static_cast<std::size_t>(layer)];
  }

  LayerValues importance_;
  std::int32_t least_;
  double factor_;
};

KVLAB_REGISTER(Allocator, SensitivityLayers, "sensitivity_layers", "layers share the budget by importance measured offline, within bounds",
               "CompressKV: Lin et al. 2025, arXiv:2508.02401");

}  // namespace

}  // namespace kvlab
