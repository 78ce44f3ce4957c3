#include <functional>

#include "policies/kv/selector/selection.h"
#include "policies/kv/selector/selector.h"

namespace kvlab {

namespace {

class All final : public Selector {
 public:
  explicit All(Params&) {}
  Selection select(LayerStep&) override { return {}; }
  [[nodiscard]] bool selects_all() const override { return true; }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
};

KVLAB_REGISTER(Selector, All, "all", "attends to every token held", "Vaswani et al. 2017, arXiv:1706.03762");

class WindowSinks final : public Budgeted<Selector> {
 public:
  explicit WindowSinks(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 4, 0, 1 << 20, "first tokens attended to")),
        recent_(p.optional<std::int32_t>("recent_tokens", 1020, 1, 1 << 24, "newest tokens attended to")) {}

  Selection select(LayerStep& step) override {
    const std::int32_t* len = step.kv.len;
    const std::int32_t* sinks =
        per_row(step, [&](std::int32_t r) { return is_given(budget_) ? std::min(sinks_, tokens_of(budget_, step, r) - 1) : sinks_; });
    const std::int32_t* recent =
        per_row(step, [&](std::int32_t r) { return is_given(budget_) ? tokens_of(budget_, step, r) - sinks[r] : recent_; });
    const std::int32_t* tail = per_row(
        step, [&](std::int32_t r) { return len[r] <= sinks[r] + recent[r] ? 0 : std::min(len[r] - recent[r], older_tokens(step, r)); });
    if (all_whole(step, tail)) return {};
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return std::min(sinks[r], tail[r]); });
    return expand(step, {.lists = no_units(step), .head = head, .tail = tail});
  }

 private:
  std::int32_t sinks_, recent_;
};

KVLAB_REGISTER(Selector, WindowSinks, "window_sinks", "the first tokens and a window of the newest ones",
               "StreamingLLM: Xiao et al. 2023, arXiv:2309.17453, section 3.2");

// The GPU holds the current and the next layer.
class FetchAll final : public Selector {
 public:
  explicit FetchAll(Params& p)
      : on_disk_(p.choice("from", {{"cpu_memory", false}, {"disk", true}}, false, "the place of K and V between steps")) {}

  Selection select(LayerStep& step) override {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      const std::int32_t older = older_tokens(step, r);
      const std::int64_t bytes = 2LL * older * step.kv.head_dim * step.kv.kv_bytes;
      traffic_.asked_units += older;
      traffic_.fetched_bytes += bytes;
      if (on_disk_) traffic_.disk_bytes += bytes;
    }
    return {};
  }

  [[nodiscard]] FetchBeside fetches_beside() const override { return FetchBeside::kLayerBefore; }
  Traffic take_traffic() override { return std::exchange(traffic_, {}); }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows&, const TierBytes& held) const override {
    const std::int64_t two_layers = std::min(held.gpu, held.gpu * 2 / model.num_layers);
    return {two_layers, held.host + (on_disk_ ? 0 : held.gpu), held.disk + (on_disk_ ? held.gpu : 0)};
  }

 private:
  bool on_disk_;
  Traffic traffic_;
};

KVLAB_REGISTER(Selector, FetchAll, "fetch_all", "every step brings all K and V from CPU memory or disk",
               "FlexGen: Sheng et al. 2023, arXiv:2303.06865, algorithm 1");

// Upper bound of selection by attention mass, the mean over a KV head's query heads.
class TopKOracle final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit TopKOracle(Params& p)
      : Budgeted({p.optional<std::int32_t>("budget_tokens", 1024, 1, 1 << 24, "tokens attended to per KV head, this step's included")}),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 0, 0, 1024, "first layers that attend to everything")) {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* len = step.kv.len;
    const std::int32_t* budget = per_row(step, [&](std::int32_t r) { return tokens_of(budget_, step, r); });
    if (step.layer < dense_layers_ || std::equal(len, len + n, budget, std::less_equal<>())) return {};
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return older_tokens(step, r); });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) { return std::clamp(budget[r] - (len[r] - tail[r]), 0, tail[r]); });
    const TokenProbabilities all = token_probabilities(step, AttentionStats::Group::kMean, nullptr);
    mask_ends(step, all.first, per_row(step, [](std::int32_t) { return 0; }), tail, all.scores);
    const UnitLists lists = best_units(step, all.first, all.scores, keep);
    traffic_.track(step, lists);
    return expand(step, {.lists = lists, .tail = tail});
  }

 private:
  std::int32_t dense_layers_;
};

KVLAB_REGISTER(Selector, TopKOracle, "top_k_oracle",
               "the tokens of largest attention in this step, at the cost of computing all of it (an upper bound)",
               "H2O: Zhang et al. 2023, arXiv:2306.14048, section 3.1");

}  // namespace

}  // namespace kvlab
