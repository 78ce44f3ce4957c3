#include "kernels/select/top_k/top_k.h"
#include "policies/kv/allocator/counts.h"

namespace kvlab {

namespace {

// Heads of a layer keep equal counts.
class DynamicLayers final : public Allocator {
 public:
  explicit DynamicLayers(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 8, 0, 4096, "tokens that every layer keeps anyway")),
        surplus_(p.optional<double>("surplus", 10, 1, 1000, "budgets, beside the window, that a new layer keeps at first")),
        every_(p.optional<std::int32_t>("every_layers", 4, 1, 1000, "layers between two rounds of the competition")) {}

  [[nodiscard]] Scope scope() const override { return Scope::kCascade; }
  [[nodiscard]] bool depends_on_data() const override { return true; }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    const auto sequences = static_cast<std::int32_t>(seqs.size());
    for (ScoredLayer& l : layers)
      for (std::int32_t s = 0; s < sequences; ++s) keep_alike(l, s, l.kv.len[s * l.kv.kv_heads]);
    ScoredLayer& newest = layers.back();
    for (std::int32_t s = 0; s < sequences; ++s) keep_alike(newest, s, first_tokens(newest.target[s]));
    const std::int32_t done = newest.layer + 1;
    if (done % every_ != 0 && done != model.num_layers) return;
    compete(ops, sequences, layers);
    for (const ScoredLayer& l : layers) ops.settle("dynamic_layers", l.layer, all_counts(l));
  }

 private:
  [[nodiscard]] std::int64_t first_tokens(std::int32_t target) const {
    return std::min(target, window_) + static_cast<std::int64_t>(surplus_ * std::max(0, target - window_));
  }

  static void compete(Ops& ops, std::int32_t sequences, std::span<ScoredLayer> layers) {
    const Ops::Frame frame(ops);
    const std::int32_t heads = layers.front().kv.kv_heads, rows_per_pool = static_cast<std::int32_t>(layers.size()) * heads;
    const std::int64_t rows = std::int64_t{sequences} * rows_per_pool;
    std::int64_t *first = ops.host_longs(rows + 1), *budget = ops.host_longs(sequences);
    std::int32_t* won = ops.host_ints(rows);
    std::vector<const float*> scores;
    first[0] = 0;
    for (std::int32_t s = 0, at = 0; s < sequences; ++s) {
      budget[s] = 0;
      for (const ScoredLayer& l : layers) {
        budget[s] += std::int64_t{l.target[s]} * heads;
        for (std::int32_t r = s * heads; r < (s + 1) * heads; ++r, ++at) {
          scores.push_back(l.scores == nullptr ? nullptr : l.scores + l.kv.first[r]);
          first[at + 1] = first[at] + l.kv.len[r];
          won[at] = l.keep[r];  // bound
        }
      }
    }
    ops(TopK{.num_rows = sequences * rows_per_pool,
             .first = first,
             .kind = TopK::Kind::kCounts,
             .rows_per_pool = rows_per_pool,
             .row_scores = scores.data(),
             .budget = budget,
             .count = won});
    for (std::int32_t s = 0; s < sequences; ++s) share(won + s * rows_per_pool, s, budget[s] / heads, layers);
  }

  // Rounds means cumulatively; excess tokens go to other layers.
  static void share(const std::int32_t* won, std::int32_t s, std::int64_t total, std::span<ScoredLayer> layers) {
    const std::int32_t heads = layers.front().kv.kv_heads;
    std::vector<std::int32_t> counts, held;
    std::int64_t sum = 0, given = 0;
    for (const ScoredLayer& l : layers) {
      for (std::int32_t h = 0; h < heads; ++h) sum += *won++;
      held.push_back(l.keep[s * heads]);
      counts.push_back(static_cast<std::int32_t>(std::min<std::int64_t>((sum + heads / 2) / heads - given, held.back())));
      given = (sum + heads / 2) / heads;
    }
    pass_on(counts, held, total);
    for (std::size_t l = 0; l < layers.size(); ++l) keep_alike(layers[l], s, counts[l]);
  }

  std::int32_t window_;
  double surplus_;
  std::int32_t every_;
};

KVLAB_REGISTER(Allocator, DynamicLayers, "dynamic_layers", "layers keep a surplus at first and compete for the budget every few layers",
               "DynamicKV: Zhou et al. 2024, arXiv:2412.14838, algorithm 1");

}  // namespace

}  // namespace kvlab
