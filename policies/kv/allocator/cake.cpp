#include <cmath>

#include "kernels/allocate/pool_numbers_op.h"
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

std::int64_t equal_part(std::int64_t total, std::int32_t count, std::int32_t index) {
  return total * (index + 1) / count - total * index / count;
}

// Shares are the softmax of a layer's negative score variance, at least a hundredth. Ours: dense layers take at most half of the model's
// budget, or more if the others have no room; protected tokens do not count. Allocates at the prompt's end, or in decode once over budget.
// With entropy and no dense layers: Evict3R, Mahdi et al. 2025, arXiv:2509.17650.
class D2oLayers final : public Allocator {
 public:
  explicit D2oLayers(Params& p)
      : dense_first_(
            p.optional<std::int32_t>("dense_first_layers", 2, 0, 1000,
                                     "first layers that keep everything, while all dense layers fit in half of the model's budget")),
        dense_last_(p.optional<std::int32_t>("dense_last_layers", 1, 0, 1000, "last layers that do so")),
        entropy_(p.choice("shares", {{"variance", false}, {"entropy", true}}, false,
                          "softmax of the negative variance of a layer's scores, or in proportion to their entropy")),
        least_(p.optional<double>("least_frac", 0.01, 0, 1, "least share of a layer's tokens, where the budget has room for it")),
        least_mean_(p.optional<double>("least_mean_frac", 0, 0, 1, "least share of the mean budget")),
        temperature_(p.optional<double>("temperature", 1, 1e-6, 1e9, "of the softmax, in units of variance")) {}
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] Scope scope() const override { return Scope::kModel; }
  [[nodiscard]] bool depends_on_data() const override { return true; }
  [[nodiscard]] bool keeps_counts() const override { return true; }
  [[nodiscard]] bool has_shares() const override { return true; }
  [[nodiscard]] bool over_shares(const ModelShape&, std::int32_t, std::span<const std::int32_t>, std::int32_t,
                                 std::int32_t) const override {
    return true;
  }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    std::vector<bool> is_new;
    for (std::size_t s = 0; s < seqs.size(); ++s) is_new.push_back(!seqs[s].decoding() || is_whole(seqs[s], s, layers));
    if (std::find(is_new.begin(), is_new.end(), true) != is_new.end()) share_model(ops, model, layers);
    for (ScoredLayer& l : layers) {
      for (std::size_t s = 0; s < seqs.size(); ++s)
        if (const auto at = static_cast<std::int32_t>(s); !is_new[s]) keep_alike(l, at, longest_row(l.kv, at) - seqs[s].new_tokens);
      settle(ops, is_new, l);
    }
  }
  // The mean of competing layers.
  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t, std::int32_t target,
                                      std::int32_t n) const override {
    const Split split = split_of(model, target, n);
    const std::int64_t tokens = is_dense(model, layer) ? equal_part(split.of_dense, split.num_dense, dense_index(model, layer))
                                                       : equal_part(split.of_others, split.num_others, layer - dense_first_);
    return static_cast<std::int32_t>(std::min<std::int64_t>(tokens, n));
  }

 private:
  struct Split {
    std::int32_t num_dense = 0, num_others = 0;
    std::int64_t of_dense = 0, of_others = 0;
  };
  [[nodiscard]] Split split_of(const ModelShape& model, std::int32_t target, std::int32_t n) const {
    Split split;
    split.num_dense = std::min(model.num_layers, dense_first_ + dense_last_);
    split.num_others = model.num_layers - split.num_dense;
    const std::int64_t total = std::int64_t{target} * model.num_layers;
    split.of_dense = std::min(std::int64_t{split.num_dense} * n, std::max(total / 2, total - std::int64_t{split.num_others} * n));
    split.of_others = total - split.of_dense;
    return split;
  }
  [[nodiscard]] bool is_dense(const ModelShape& model, std::int32_t layer) const {
    return layer < dense_first_ || layer >= model.num_layers - dense_last_;
  }
  [[nodiscard]] std::int32_t dense_index(const ModelShape& model, std::int32_t layer) const {
    return layer < dense_first_ ? layer : layer - std::max(0, model.num_layers - dense_first_ - dense_last_);
  }

  static bool is_whole(const SeqStep& seq, std::size_t s, std::span<const ScoredLayer> layers) {
    return std::all_of(layers.begin(), layers.end(),
                       [&](const ScoredLayer& l) { return longest_row(l.kv, static_cast<std::int32_t>(s)) >= seq.end(); });
  }

  void share_model(Ops& ops, const ModelShape& model, std::span<ScoredLayer> layers) const {
    const Ops::Frame frame(ops);
    const std::int32_t sequences = layers.front().kv.num_sequences();
    std::vector<ScoredLayer*> others;
    for (ScoredLayer& l : layers)
      if (!is_dense(model, l.layer)) others.push_back(&l);
    std::int64_t* of_others = ops.host_longs(sequences);
    for (std::int32_t s = 0; s < sequences; ++s) {
      std::int32_t n = 0;
      for (const ScoredLayer& l : layers) n = std::max(n, longest_row(l.kv, s));
      const Split split = split_of(model, layers.front().target[s], n);
      of_others[s] = split.of_others;
      for (ScoredLayer& l : layers)
        if (is_dense(model, l.layer)) keep_alike(l, s, equal_part(split.of_dense, split.num_dense, dense_index(model, l.layer)));
    }
    if (!others.empty()) share_by_variance(ops, others, sequences, of_others);
  }

  void share_by_variance(Ops& ops, std::span<ScoredLayer* const> layers, std::int32_t sequences, const std::int64_t* total) const {
    const auto members = static_cast<std::int32_t>(layers.size());
    const std::int64_t all = std::int64_t{sequences} * members;
    std::vector<std::vector<double>> weights(static_cast<std::size_t>(sequences));
    std::int32_t *floor = ops.host_ints(all), *cap = ops.host_ints(all), *counts = ops.host_ints(all);
    for (std::int32_t l = 0; l < members; ++l) {
      const ScoredLayer& layer = *layers[static_cast<std::size_t>(l)];
      std::vector<float> of_layer(static_cast<std::size_t>(sequences));
      ops(PoolNumbers{sequences, layer.kv.kv_heads, layer.kv.first, layer.scores, of_layer.data(),
                      entropy_ ? PoolNumbers::Kind::kEntropy : PoolNumbers::Kind::kVariance});
      for (std::int32_t s = 0; s < sequences; ++s) {
        const std::int32_t n = longest_row(layer.kv, s), at = s * members + l;
        weights[static_cast<std::size_t>(s)].push_back(of_layer[static_cast<std::size_t>(s)]);
        const std::int64_t mean = total[s] / members;
        const auto least = static_cast<std::int64_t>(std::max(std::ceil(least_ * n), std::floor(least_mean_ * static_cast<double>(mean))));
        floor[at] = static_cast<std::int32_t>(std::min({least, mean, std::int64_t{n}}));
        counts[at] = cap[at] = n;
      }
    }
    for (std::vector<double>& w : weights)
      if (!entropy_) w = softmax_of_negative(w, static_cast<float>(temperature_));
    share_out(ops, weights, total, floor, cap, Excess::kByWeight, counts);
    for (std::int32_t l = 0; l < members; ++l)
      for (std::int32_t s = 0; s < sequences; ++s) keep_alike(*layers[static_cast<std::size_t>(l)], s, counts[s * members + l]);
  }

  static void settle(Ops& ops, const std::vector<bool>& is_new, ScoredLayer& l) {
    const auto heads = static_cast<std::size_t>(l.kv.kv_heads);
    for (std::size_t begin = 0, end = 0; begin < is_new.size(); begin = end) {
      while (end < is_new.size() && is_new[end] == is_new[begin]) ++end;
      if (is_new[begin]) ops.settle("d2o_layers", l.layer, all_counts(l).subspan(begin * heads, (end - begin) * heads));
    }
  }

  std::int32_t dense_first_, dense_last_;
  bool entropy_;
  double least_, least_mean_, temperature_;
};

KVLAB_REGISTER(Allocator, D2oLayers, "d2o_layers",
               "layers whose scores vary less keep more; first and last layers keep everything that fits in half of the budget",
               "D2O: Wan et al. 2024, arXiv:2406.13035");

}  // namespace

}  // namespace kvlab
