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

}  // namespace

}  // namespace kvlab
