#include "kernels/allocate/rank_means/rank_means.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/allocator/counts.h"

namespace kvlab {

namespace {

class Global final : public Allocator {
  enum class Rounding : std::uint8_t { kPerRow, kDropped, kKept };

 public:
  explicit Global(Params& p)
      : safeguard_(p.optional<double>("safeguard_frac", 0, 0, 1, "share of the mean budget that every head has for certain")),
        rounding_(p.choice("rounding", {{"per_row", Rounding::kPerRow}, {"whole", Rounding::kDropped}, {"whole_kept", Rounding::kKept}},
                           Rounding::kPerRow,
                           "a share of the prompt becomes tokens per row; or once for the whole model, where the number dropped (whole) or "
                           "kept (whole_kept) is rounded down")) {}

  void set_budget(const Budget& budget) override {
    frac_ = budget.tokens > 0 ? 0 : budget.frac;
    dropped_ = budget.dropped_frac();
  }
  [[nodiscard]] bool rounds_for_model() const override { return rounding_ != Rounding::kPerRow && frac_ > 0; }
  [[nodiscard]] Scope scope() const override { return Scope::kModel; }
  [[nodiscard]] bool depends_on_data() const override { return true; }
  [[nodiscard]] bool splits_heads() const override { return true; }

  void allocate(Ops& ops, const ModelShape&, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    const Ops::Frame frame(ops);
    const auto sequences = static_cast<std::int32_t>(seqs.size()), heads = layers.front().kv.kv_heads;
    const auto rows_per_pool = static_cast<std::int32_t>(layers.size()) * heads;
    std::int64_t *first = ops.host_longs(std::int64_t{sequences} * rows_per_pool + 1), *budget = ops.host_longs(sequences);
    std::int32_t *least = ops.host_ints(std::int64_t{sequences} * rows_per_pool),
                 *keep = ops.host_ints(std::int64_t{sequences} * rows_per_pool);
    std::vector<const float*> scores;
    first[0] = 0;
    for (std::int32_t s = 0, at = 0; s < sequences; ++s) {
      std::int64_t held = 0;
      budget[s] = 0;
      for (const ScoredLayer& l : layers) {
        for (std::int32_t r = s * heads; r < (s + 1) * heads; ++r, ++at) {
          scores.push_back(l.scores == nullptr ? nullptr : l.scores + l.kv.first[r]);
          first[at + 1] = first[at] + l.kv.len[r];
          least[at] = static_cast<std::int32_t>(safeguard_ * l.target[s]);
          held += l.kv.len[r];
          budget[s] += std::min(l.target[s], l.kv.len[r]);
        }
      }
      if (rounding_ != Rounding::kPerRow && frac_ > 0) budget[s] = whole(held);
    }
    for (std::int32_t s = 0, at = 0; s < sequences; ++s)
      for (std::int32_t i = 0; i < rows_per_pool; ++i, ++at)
        keep[at] = static_cast<std::int32_t>(std::min(first[at + 1] - first[at], budget[s]));  // bound
    ops(TopK{.num_rows = sequences * rows_per_pool,
             .first = first,
             .kind = TopK::Kind::kCounts,
             .rows_per_pool = rows_per_pool,
             .row_scores = scores.data(),
             .budget = budget,
             .floor_tokens = least,
             .count = keep});
    for (std::size_t l = 0; l < layers.size(); ++l) {
      for (std::int32_t r = 0; r < layers[l].kv.num_rows; ++r)
        layers[l].keep[r] = keep[r / heads * rows_per_pool + static_cast<std::int32_t>(l) * heads + r % heads];
      ops.settle("global", layers[l].layer, all_counts(layers[l]));
    }
  }

 private:
  [[nodiscard]] std::int64_t whole(std::int64_t held) const {
    return rounding_ == Rounding::kDropped ? left_of(held, dropped_) : kept_of(held, frac_);
  }

  double safeguard_;
  Rounding rounding_;
  double frac_ = 0, dropped_ = 0;  // shares of the prompt
};

KVLAB_REGISTER(Allocator, Global, "global", "all layers and heads compete for one budget by score",
               "KVzip: Kim et al. 2025, arXiv:2505.23416");

// Composite tokens: the means over heads of j-th largest scores.
class LayerGlobal final : public Allocator {
 public:
  explicit LayerGlobal(Params& p)
      : safeguard_(p.optional<double>("safeguard_frac", 0, 0, 1, "share of the mean budget that every layer has for certain")),
        kvpress_(
            p.choice("counts", {{"budget", false}, {"kvpress", true}}, false,
                     "kvpress: as kvpress 0.5.5 counts: the first layer's entries are the largest of all layers, a share of the prompt is "
                     "rounded once for the model, and an empty layer keeps one token more")) {}

  void set_budget(const Budget& budget) override { frac_ = budget.tokens > 0 ? 0 : budget.frac; }

  [[nodiscard]] Scope scope() const override { return Scope::kModel; }
  [[nodiscard]] bool depends_on_data() const override { return true; }

  [[nodiscard]] bool rounds_for_model() const override { return kvpress_ && frac_ > 0; }

  void allocate(Ops& ops, const ModelShape&, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    const Ops::Frame frame(ops);
    const auto sequences = static_cast<std::int32_t>(seqs.size()), members = static_cast<std::int32_t>(layers.size());
    const std::int64_t rows = std::int64_t{sequences} * members;
    std::int64_t *first = ops.host_longs(rows + 1), *budget = ops.host_longs(sequences);
    std::int32_t *least = ops.host_ints(rows), *keep = ops.host_ints(rows), *len = ops.host_ints(rows);
    std::vector<float*> entries(static_cast<std::size_t>(rows));
    for (std::int32_t l = 0; l < members; ++l) rank(ops, layers[static_cast<std::size_t>(l)], entries.data() + l, members);
    first[0] = 0;
    for (std::int32_t s = 0, at = 0; s < sequences; ++s) {
      budget[s] = 0;
      for (std::int32_t l = 0; l < members; ++l, ++at) {
        const ScoredLayer& layer = layers[static_cast<std::size_t>(l)];
        const std::int32_t n = shortest_row(layer.kv, s);
        first[at + 1] = first[at] + n, len[at] = n;
        least[at] = static_cast<std::int32_t>(safeguard_ * layer.target[s]);
        budget[s] += std::min(layer.target[s], n);
      }
      const std::int64_t all = first[at] - first[at - members];
      if (kvpress_ && frac_ > 0) budget[s] = kept_of(all, frac_);
      for (std::int32_t i = at - members; i < at; ++i) keep[i] = static_cast<std::int32_t>(std::min(first[i + 1] - first[i], budget[s]));
    }
    const KvRows ranked{.num_rows = static_cast<std::int32_t>(rows), .kv_heads = members, .len = len, .first = first};
    if (kvpress_) ops(ReduceHeads{ranked, ReduceHeads::Kind::kFirstMax, nullptr, false, entries.data()});
    ops(TopK{.num_rows = sequences * members,
             .first = first,
             .kind = TopK::Kind::kCounts,
             .rows_per_pool = members,
             .row_scores = entries.data(),
             .budget = budget,
             .floor_tokens = least,
             .count = keep});
    for (std::int64_t i = 0; i < rows && kvpress_; ++i) keep[i] = std::max(keep[i], 1);
    for (std::int32_t l = 0; l < members; ++l) {
      ScoredLayer& layer = layers[static_cast<std::size_t>(l)];
      for (std::int32_t s = 0; s < sequences; ++s) keep_alike(layer, s, keep[s * members + l]);
      ops.settle("layer_global", layer.layer, all_counts(layer));
    }
  }

 private:
  // Descending; entries[s * stride] is their address.
  static void rank(Ops& ops, const ScoredLayer& layer, float** entries, std::int32_t stride) {
    const std::int32_t sequences = layer.kv.num_sequences();
    std::int64_t* first = ops.host_longs(sequences + 1);
    first[0] = 0;
    for (std::int32_t s = 0; s < sequences; ++s) first[s + 1] = first[s] + shortest_row(layer.kv, s);
    float* means = ops.floats(first[sequences]);
    ops(RankMeans{sequences, layer.kv.kv_heads, layer.kv.first, layer.scores, first, means});
    for (std::int32_t s = 0; s < sequences; ++s)
      entries[static_cast<std::ptrdiff_t>(s) * stride] = means == nullptr ? nullptr : means + first[s];
  }

  double safeguard_;
  bool kvpress_;
  double frac_ = 0;  // share of the prompt
};

KVLAB_REGISTER(Allocator, LayerGlobal, "layer_global", "layers compete for the model's budget, heads of a layer keep the same count",
               "KVCompose: Akulov et al. 2025, arXiv:2509.05165");

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
