#include <cmath>
#include <vector>

#include "kernels/score_variance/score_variance.h"
#include "kernels/share_out/share_out.h"
#include "policies/kv/allocator/counts.h"

namespace kvlab {

namespace {

// Layers whose scores vary less keep more: shares are the softmax of the negative variance of the layer's scores (meant: accumulated
// attention), at most everything and at least a hundredth; the first and last layers keep everything, on top of the budget.
// D2O, Wan et al. 2024, arXiv:2406.13035. Protected tokens do not count in the variance, which is our definition.
class D2oLayers final : public Allocator {
 public:
  explicit D2oLayers(Params& p)
      : dense_first_(p.optional<std::int32_t>("dense_first_layers", 2, 0, 1000, "first layers that keep everything")),
        dense_last_(p.optional<std::int32_t>("dense_last_layers", 1, 0, 1000, "last layers that keep everything")),
        least_(p.optional<double>("least_frac", 0.01, 0, 1, "least share of a layer's tokens")),
        temperature_(p.optional<double>("temperature", 1, 1e-6, 1e9, "of the softmax, in units of variance")) {}

  [[nodiscard]] Scope scope() const override { return Scope::kModel; }
  [[nodiscard]] bool depends_on_data() const override { return true; }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    const Ops::Frame frame(ops);
    const auto sequences = static_cast<std::int32_t>(seqs.size()), members = static_cast<std::int32_t>(layers.size());
    const std::int64_t all = std::int64_t{sequences} * members;
    std::vector<float> variance(static_cast<std::size_t>(all));  // host memory, of ScoreVariance and ShareOut
    std::vector<const float*> weights;
    for (std::int32_t s = 0; s < sequences; ++s) weights.push_back(variance.data() + s * members);
    std::int64_t* total = ops.host_longs(sequences);
    std::int32_t *floor = ops.host_ints(all), *cap = ops.host_ints(all), *counts = ops.host_ints(all);
    for (std::int32_t l = 0; l < members; ++l) {
      const ScoredLayer& layer = layers[static_cast<std::size_t>(l)];
      std::vector<float*> out;
      for (std::int32_t s = 0; s < sequences; ++s) {
        const std::int32_t n = longest_row(layer.kv, s), at = s * members + l;
        out.push_back(variance.data() + at);
        counts[at] = cap[at] = n;
        floor[at] = static_cast<std::int32_t>(std::ceil(least_ * n));
        total[s] = std::int64_t{layer.target[s]} * members;
      }
      ops(ScoreVariance{sequences, layer.kv.kv_heads, layer.kv.first, layer.scores, out.data()});
    }
    ops(ShareOut{sequences, members, weights.data(), true, static_cast<float>(temperature_), total, floor, cap, Excess::kLost, counts});
    for (std::int32_t l = 0; l < members; ++l) {
      ScoredLayer& layer = layers[static_cast<std::size_t>(l)];
      for (std::int32_t s = 0; s < sequences; ++s)
        keep_alike(layer, s, is_dense(model, layer.layer) ? longest_row(layer.kv, s) : counts[s * members + l]);
      ops.settle("d2o_layers", layer.layer, all_counts(layer));
    }
  }
  // The mean of the layers that compete; less where a layer's share exceeds what it holds.
  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t, std::int32_t target,
                                      std::int32_t n) const override {
    return is_dense(model, layer) ? n : std::min(target, n);
  }

 private:
  [[nodiscard]] bool is_dense(const ModelShape& model, std::int32_t layer) const {
    return layer < dense_first_ || layer >= model.num_layers - dense_last_;
  }

  std::int32_t dense_first_, dense_last_;
  double least_, temperature_;
};

[[maybe_unused]] const bool registered =
    AllocatorRegistry::add<D2oLayers>({"d2o_layers", "layers whose scores vary less keep more; first and last layers keep everything",
                                       "D2O: Wan et al. 2024, arXiv:2406.13035"});

}  // namespace

}  // namespace kvlab
