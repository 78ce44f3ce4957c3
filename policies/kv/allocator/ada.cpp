#include <cmath>

#include "kernels/select/top_k/top_k.h"
#include "policies/kv/allocator/counts.h"

namespace kvlab {

namespace {

// Protected tokens have infinite scores in every head.
class Ada final : public Allocator {
  enum class Ties : std::uint8_t { kLowerIndex, kPeerDropped, kPeerKept };

 public:
  explicit Ada(Params& p)
      : alpha_(p.optional<double>("safeguard_frac", 0.2, 0, 1, "share of the mean budget that every head has for certain")),
        forced_first_(p.choice("safeguard", {{"blend", false}, {"forced_first", true}}, false,
                               "blend: counts are mixed with the mean budget (the paper's code); forced_first: each head's best tokens are "
                               "taken before the heads compete")),
        ties_(p.choice("ties", {{"lower_index", Ties::kLowerIndex}, {"adakv", Ties::kPeerDropped}, {"critical_adakv", Ties::kPeerKept}},
                       Ties::kLowerIndex,
                       "which of equal scores win: those of the lower head and token; or as in kvpress 0.5.5, where AdaKVPress chooses the "
                       "tokens here and CriticalAdaKVPress the forced ones, and its scorer the others")),
        whole_(p.choice("rounding", {{"per_row", false}, {"whole", true}}, false,
                        "a share of the prompt becomes tokens per row, or once for the layer")) {
    auto [name, parameters] = p.named("layers", "uniform", "allocator that gives each layer its budget");
    layers_ = AllocatorRegistry::make(name, parameters, "allocator");
    if (whole_ && !layers_->is_uniform())
      p.fail_at("rounding", "'rounding: whole' is of the uniform budget, but 'layers' is '" + name + "'");
    if (layers_->scope() == Scope::kCascade) p.fail_at("layers", "'" + name + "' changes layers in which heads competed already");
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs = layers_->needs();
    if (ties_ != Ties::kLowerIndex) needs.run_only_on_cpu(kBreaksPeerTies);
    return needs;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return layers_->refuses(model); }
  [[nodiscard]] TakesWeights takes_weights() const override { return layers_->takes_weights(); }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override { layers_->set_weights(weights); }
  void forget(std::int32_t index) override { layers_->forget(index); }
  void set_budget(const Budget& budget) override {
    dropped_ = budget.tokens > 0 ? 0 : budget.dropped_frac();
    layers_->set_budget(budget);
  }
  [[nodiscard]] Scope scope() const override { return layers_->scope(); }
  [[nodiscard]] bool depends_on_data() const override { return true; }
  [[nodiscard]] bool splits_heads() const override { return true; }
  [[nodiscard]] FixesTokens fixes_tokens() const override {
    if (ties_ == Ties::kPeerDropped) return FixesTokens::kAll;
    return ties_ == Ties::kPeerKept ? FixesTokens::kSome : layers_->fixes_tokens();
  }
  [[nodiscard]] bool rounds_for_model() const override { return layers_->rounds_for_model(); }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    layers_->allocate(ops, model, seqs, layers);
    for (ScoredLayer& l : layers) compete(ops, model, seqs, l);
  }
  [[nodiscard]] bool has_shares() const override { return layers_->has_shares(); }
  [[nodiscard]] bool over_shares(const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len, std::int32_t target,
                                 std::int32_t n) const override {
    std::int64_t held = 0, share = 0;
    for (std::size_t h = 0; h < len.size(); ++h) {
      held += len[h];
      share += layers_->expected(model, layer, static_cast<std::int32_t>(h), target, n);
    }
    return held > share;
  }
  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                      std::int32_t n) const override {
    return layers_->expected(model, layer, head, target, n);
  }

 private:
  // Rows below their share leave the rest to others.
  [[nodiscard]] std::int64_t shared(const ModelShape& model, const SeqStep& seq, const ScoredLayer& l, std::int32_t s) const {
    const std::int32_t heads = l.kv.kv_heads, row = s * heads;
    std::int64_t held = 0, total = 0;
    for (std::int32_t h = 0; h < heads; ++h) {
      held += l.kv.len[row + h];
      total += layers_->depends_on_data()
                   ? l.keep[row + h]
                   : layers_->expected_part(model, l.layer, h, l.target[s], l.full == nullptr ? 0 : l.full[s], seq.end());
    }
    if (whole_ && dropped_ > 0) return left_of(held, dropped_);
    return std::min(held, total);
  }

  void compete(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, ScoredLayer& l) {
    const Ops::Frame frame(ops);
    const std::int32_t heads = l.kv.kv_heads, sequences = l.kv.num_sequences();
    std::int64_t* total = ops.host_longs(sequences);
    std::int32_t* least = ops.host_ints(l.kv.num_rows);
    for (std::int32_t s = 0; s < sequences; ++s) {
      total[s] = shared(model, seqs[static_cast<std::size_t>(s)], l, s);
      const std::int64_t mean = total[s] / heads;
      for (std::int32_t r = s * heads; r < (s + 1) * heads; ++r) {
        least[r] = forced_first_ ? safe_tokens(mean) : 0;
        l.keep[r] = static_cast<std::int32_t>(std::min<std::int64_t>(l.kv.len[r], total[s]));  // bound
      }
    }
    ops(TopK{.num_rows = l.kv.num_rows,
             .first = l.kv.first,
             .scores = l.scores,
             .peer_ties = ties_ != Ties::kLowerIndex,
             .kind = TopK::Kind::kCounts,
             .rows_per_pool = heads,
             .budget = total,
             .floor_tokens = least,
             .count = l.keep,
             .drops = ties_ == Ties::kPeerDropped,
             .marked = l.marks});
    if (!forced_first_)
      for (std::int32_t s = 0; s < sequences; ++s) blend(l, s, total[s]);
    ops.settle("ada", l.layer, all_counts(l));
  }

  // kvpress 0.5.5 takes at least one token.
  [[nodiscard]] std::int32_t safe_tokens(std::int64_t mean) const {
    return alpha_ > 0 && mean > 0 ? std::max(1, static_cast<std::int32_t>(static_cast<double>(mean) * alpha_)) : 0;
  }

  // (1 - alpha) * count + alpha * mean, rounded to sum to the layer's budget.
  void blend(ScoredLayer& l, std::int32_t s, std::int64_t total) const {
    const std::int32_t heads = l.kv.kv_heads, row = s * heads;
    const double mean = static_cast<double>(total) / heads;
    double real = 0;
    std::int64_t given = 0;
    for (std::int32_t r = row; r < row + heads; ++r) {
      real += (1 - alpha_) * l.keep[r] + alpha_ * mean;
      const std::int64_t upto = std::llround(real);
      l.keep[r] = static_cast<std::int32_t>(std::min<std::int64_t>(upto - given, l.kv.len[r]));
      given = upto;
    }
    const auto count = static_cast<std::size_t>(heads);
    pass_on({l.keep + row, count}, {l.kv.len + row, count}, total);
  }

  double alpha_;
  bool forced_first_;
  Ties ties_;
  bool whole_;
  double dropped_ = 0;  // share of the prompt
  std::unique_ptr<Allocator> layers_;
};

KVLAB_REGISTER(Allocator, Ada, "ada", "heads of a layer compete for its budget by score, each with a safeguard",
               "AdaKV: Feng et al. 2024, arXiv:2407.11550, algorithm 1");

}  // namespace

}  // namespace kvlab
