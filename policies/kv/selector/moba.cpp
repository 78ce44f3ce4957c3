#include <algorithm>

#include "policies/kv/selector/paged_selector.h"

namespace kvlab {

namespace {

// The gate without training. A KV head reads the union of its query heads' chunks.
class Moba final : public PagedSelector {
 public:
  explicit Moba(Params& p) {
    const auto chunk = p.optional<std::int32_t>("chunk_tokens", 2048, 1, 1 << 20, "tokens of a chunk");
    top_ = p.optional<std::int32_t>("top_chunks", 3, 1, 1 << 20, "chunks read by each query head, the step's own included");
    const auto dense = p.optional<std::int32_t>("dense_layers", 0, 0, 1024, "first layers that attend to everything");
    set_sizes({.unit_tokens = chunk, .dense_layers = dense, .summary = KeySummaries::Kind::kMeans});
  }

 protected:
  // Budgets are per query head, in whole chunks, at least two.
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    const std::int32_t top = is_given(budget_) ? std::max(2, tokens(step, r) / unit_tokens()) : top_;
    const bool fits = is_given(budget_) && step.kv.len[r] <= tokens(step, r);
    return fits || full_units(step, r) < top ? Plan{} : Plan{full_units(step, r), top - 1};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    return best_by(step, page_scores(step, summaries_.rows(step), rows.first, PageScores::Kind::kDot), true, rows);
  }

 private:
  std::int32_t top_ = 0;
};

KVLAB_REGISTER(Selector, Moba, "moba", "chunks whose mean key matches a query head best, and the step's own",
               "MoBA: Lu et al. 2025, arXiv:2502.13189");

}  // namespace

}  // namespace kvlab
