#include <algorithm>

#include "policies/kv/selector/paged_selector.h"

namespace kvlab {

namespace {

// The newest page is always read.
class Quest final : public PagedSelector {
 public:
  explicit Quest(Params& p) {
    const auto page = p.optional<std::int32_t>("page_tokens", 16, 1, 4096, "tokens of a page");
    const auto budget =
        p.optional<std::int32_t>("budget_tokens", 1024, 1, 1 << 24, "tokens attended to per KV head, the newest page included");
    unites_ = p.choice("group", {{"max", false}, {"union", true}}, false,
                       "query heads of a KV head: the best bound counts, or each chooses and all is read");
    const auto dense = p.optional<std::int32_t>("dense_layers", 2, 0, 1024, "first layers that attend to everything");
    min_pages_ = p.optional<std::int32_t>("min_pages", 3, 1, 4096, "pages read whatever the budget");
    set_sizes({.unit_tokens = page, .dense_layers = dense, .budget = {budget}});
  }

  // With a budget share of the prompt, no other part cuts rows.
  void step_key(const SeqStep& seq, StepKey& key) const override {
    if (budget_.tokens > 0) return;
    const std::int32_t tokens = budget_.of(seq.prompt_tokens), end = seq.end();
    key.add(end <= tokens ? 1 : 0, end <= tokens ? tokens - end + 1 : StepKey::kForEver);
  }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override {
    Lengths fits = Lengths::all();
    if (budget_.tokens > 0) fits = len <= budget_.tokens ? Lengths{0, budget_.tokens + 1} : Lengths{budget_.tokens + 1, INT32_MAX};
    const std::int32_t page = unit_tokens(), in_page = (len - 1) % page;
    return in_page == 0 || in_page == page - 1 ? Lengths::only(len) : fits.within({len - in_page + 1, len - in_page + page - 1});
  }

 protected:
  // The newest page counts toward the budget.
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    const std::int32_t pages = full_units(step, r), chosen = std::max(min_pages_, tokens(step, r) / unit_tokens()) - 1;
    return step.kv.len[r] <= tokens(step, r) || pages <= chosen ? Plan{} : Plan{pages, chosen};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    return best_by(step, page_scores(step, summaries_.rows(step), rows.first), unites_, rows);
  }

 private:
  bool unites_ = false;
  std::int32_t min_pages_ = 0;
};

KVLAB_REGISTER(Selector, Quest, "quest", "pages whose key bounds promise the largest logits",
               "Quest: Tang et al. 2024, arXiv:2406.10774, algorithm 1");

}  // namespace

}  // namespace kvlab
