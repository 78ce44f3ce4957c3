#include <algorithm>
#include <cmath>

#include "kernels/allocate/share_out/share_out.h"
#include "policies/kv/allocator/counts.h"

namespace kvlab {

namespace {

// Layers share the budget by how much their keys change when each block of a prompt is computed without the others, measured offline as
// the mean cosine s of keys with and without: weight (1 - (s - min s) / (max s - min s))^power. Every layer has a least share of the mean;
// what that takes comes from the other layers by weight, so that the sum is the budget (our definition). EpiCache: Kim et al. 2025,
// arXiv:2509.17396.
class KeySimilarityLayers final : public Allocator {
 public:
  explicit KeySimilarityLayers(Params& p)
      : similarity_(read_table(p, "similarity", true, -1, 1, "LAYER=COSINE for every layer; empty: all alike")),
        power_(p.optional<double>("power", 1.1, 0, 100, "of the weights; 0: all alike")),
        least_(p.optional<double>("least_frac", 0.25, 0, 1, "least tokens of a layer, in budgets")) {
    for (const TableEntry& e : similarity_)
      if (e.head >= 0) p.fail_at("similarity", "'similarity' is a layer's: LAYER=COSINE");
  }

  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    for (std::int32_t l = 0; l < model.num_layers && !similarity_.empty(); ++l)
      if (find_entry(similarity_, l, -1) == nullptr) return "'similarity' has no value for layer " + std::to_string(l);
    return refuses_table(similarity_, "similarity", model);
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
    if (similarity_.empty()) return weights;
    const auto below = [](const TableEntry& a, const TableEntry& b) { return a.value < b.value; };
    const auto [low, high] = std::minmax_element(similarity_.begin(), similarity_.end(), below);
    const double range = high->value - low->value;
    for (std::int32_t l = 0; l < layers && range > 0; ++l)
      weights[static_cast<std::size_t>(l)] = std::pow(1 - (find_entry(similarity_, l, -1)->value - low->value) / range, power_);
    return weights;
  }

  std::vector<TableEntry> similarity_;
  double power_, least_;
};

KVLAB_REGISTER(Allocator, KeySimilarityLayers, "key_similarity_layers",
               "layers whose keys change more when blocks are computed alone get more of the budget",
               "EpiCache: Kim et al. 2025, arXiv:2509.17396");

}  // namespace

}  // namespace kvlab
