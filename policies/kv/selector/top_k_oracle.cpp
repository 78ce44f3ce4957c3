#include <functional>

#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

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
