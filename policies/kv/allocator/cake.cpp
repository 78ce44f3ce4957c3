#include "kernels/attention/window_moments/window_moments.h"
#include "policies/kv/allocator/counts.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

class Cake final : public Allocator {
 public:
  explicit Cake(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that are looked at; their tokens stay")),
        tau_entropy_(p.optional<double>("tau_entropy", 1, 0.01, 100, "the larger, the less the width of attention counts")),
        tau_variance_(p.optional<double>("tau_variance", 1, 0.01, 100, "the larger, the less the change of attention counts")) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] Scope scope() const override { return Scope::kCascade; }
  [[nodiscard]] bool depends_on_data() const override { return true; }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    const Ops::Frame frame(ops);
    const auto sequences = static_cast<std::int32_t>(seqs.size()), members = static_cast<std::int32_t>(layers.size());
    measure(ops, model, seqs, layers.back());
    std::int64_t* total = ops.host_longs(sequences);
    const std::int64_t all = std::int64_t{sequences} * members;
    std::int32_t *none = ops.host_ints(all), *cap = ops.host_ints(all), *counts = ops.host_ints(all);
    std::vector<std::vector<double>> weights;
    for (std::int32_t s = 0, at = 0; s < sequences; ++s) {
      total[s] = 0;
      for (const ScoredLayer& l : layers) {
        total[s] = std::int64_t{std::max(0, l.target[s] - window_)} * model.num_layers;
        none[at] = 0;
        counts[at] = cap[at] = std::max(0, longest_row(l.kv, s) - window_);
        ++at;
      }
      const std::vector<float>& of_layers = preference_[static_cast<std::size_t>(seqs[static_cast<std::size_t>(s)].index)];
      weights.emplace_back(of_layers.begin(), of_layers.begin() + members);
    }
    share_out(ops, weights, total, none, cap, Excess::kEven, counts);
    for (std::int32_t l = 0; l < members; ++l) {
      ScoredLayer& layer = layers[static_cast<std::size_t>(l)];
      for (std::int32_t s = 0; s < sequences; ++s) keep_alike(layer, s, std::min(layer.target[s], window_) + counts[s * members + l]);
      ops.settle("cake", layer.layer, all_counts(layer));
    }
  }

 private:
  void measure(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, const ScoredLayer& layer) {
    const auto count = static_cast<std::int32_t>(seqs.size());
    const std::vector<Queries> window = last_queries(layer.in->window, window_, model);
    WindowMoments moments{
        .kv = layer.kv, .queries = window.data(), .wants_spread = true, .entropy = ops.floats(count), .variance = ops.floats(count)};
    ops(moments);
    std::vector<float> out(seqs.size());
    const std::int64_t first[] = {0, count};
    ops(ScoreMap{.num_rows = 1,
                 .first = first,
                 .kind = ScoreMap::Kind::kPowers,
                 .a = moments.entropy,
                 .b = moments.variance,
                 .out = out.data(),
                 .a_power = 1 / tau_entropy_,
                 .b_power = 1 / tau_variance_});
    for (std::size_t s = 0; s < seqs.size(); ++s) {
      const auto index = static_cast<std::size_t>(seqs[s].index);
      if (preference_.size() <= index) preference_.resize(index + 1);
      preference_[index].resize(static_cast<std::size_t>(model.num_layers));
      preference_[index][static_cast<std::size_t>(layer.layer)] = out[s];
    }
  }

  std::int32_t window_;
  double tau_entropy_, tau_variance_;
  std::vector<std::vector<float>> preference_;  // [batch index][layer]
};

KVLAB_REGISTER(Allocator, Cake, "cake",
               "layers share the budget by entropy and variance of their window attention, shrinking earlier layers",
               "CAKE: Qin et al. 2025, arXiv:2503.12491");

}  // namespace

}  // namespace kvlab
