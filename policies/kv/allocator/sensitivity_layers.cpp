#include <cmath>

#include "kernels/allocate/share_out/share_out.h"
#include "policies/kv/allocator/counts.h"

namespace kvlab {

namespace {

// Layers share the budget by their importance, measured offline as the relative error that compressing the layer makes in its output;
// each has a least number of tokens and at most a few times the mean: clip(least + importance * rest, least, factor * B), what clipping
// leaves goes to the other layers by importance. CompressKV, Lin et al. 2025, arXiv:2508.02401.
class SensitivityLayers final : public Allocator {
 public:
  explicit SensitivityLayers(Params& p)
      : importance_(read_table(p, "importance", true, 0, 1e12, "LAYER=VALUE for every layer; empty: all alike")),
        least_(p.optional<std::int32_t>("least_tokens", 32, 0, 1 << 20, "tokens that every layer has for certain")),
        factor_(p.optional<double>("most_factor", 3, 1, 1000, "most tokens of a layer, in budgets")) {
    for (const TableEntry& e : importance_)
      if (e.head >= 0) p.fail_at("importance", "'importance' is a layer's: LAYER=VALUE");
  }

  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    for (std::int32_t l = 0; l < model.num_layers && !importance_.empty(); ++l)
      if (find_entry(importance_, l, -1) == nullptr) return "'importance' has no value for layer " + std::to_string(l);
    return refuses_table(importance_, "importance", model);
  }

  void allocate(Ops&, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers)
      for (std::size_t s = 0; s < seqs.size(); ++s)
        keep_alike(l, static_cast<std::int32_t>(s), tokens(model, l.layer, l.target[s], seqs[s].end()));
  }
  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t, std::int32_t target,
                                      std::int32_t n) const override {
    return tokens(model, layer, target, n);
  }

 private:
  [[nodiscard]] std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t n) const {
    if (target >= n) return n;
    const std::int32_t least = std::min(least_, target);
    const auto most = static_cast<std::int32_t>(std::min<double>(n, factor_ * target));
    const auto count = static_cast<std::size_t>(model.num_layers);
    std::vector<double> weights(count, 1.0);
    for (std::int32_t l = 0; l < model.num_layers; ++l)
      if (const TableEntry* e = find_entry(importance_, l, -1)) weights[static_cast<std::size_t>(l)] = e->value;
    const std::vector<std::int32_t> none(count, 0), cap(count, most - least);
    std::vector<std::int32_t> counts(count);
    split_total(weights, std::int64_t{target - least} * model.num_layers, none, cap, Excess::kByWeight, counts);
    return least + counts[static_cast<std::size_t>(layer)];
  }

  std::vector<TableEntry> importance_;
  std::int32_t least_;
  double factor_;
};

KVLAB_REGISTER(Allocator, SensitivityLayers, "sensitivity_layers", "layers share the budget by importance measured offline, within bounds",
               "CompressKV: Lin et al. 2025, arXiv:2508.02401");

}  // namespace

}  // namespace kvlab
