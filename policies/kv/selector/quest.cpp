#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/select/page_bounds/page_bounds.h"
#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

// Pages whose channel-wise key bounds promise the largest logits; the newest page is always read. Quest, Tang et al. 2024,
// arXiv:2406.10774, algorithm 1.
class Quest final : public QuerySelector<UnitTraffic>, public TakesShare {
 public:
  explicit Quest(Params& p)
      : page_(p.optional<std::int32_t>("page_tokens", 16, 1, 4096, "tokens of a page")),
        budget_{p.optional<std::int32_t>("budget_tokens", 1024, 1, 1 << 24, "tokens attended to per KV head, the newest page included")},
        union_(p.choice("group", {{"max", false}, {"union", true}}, false,
                        "query heads of a KV head: the best bound counts, or each chooses and all is read")),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 2, 0, 1024, "first layers that attend to everything")),
        min_pages_(p.optional<std::int32_t>("min_pages", 3, 1, 4096, "pages read whatever the budget")) {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override {
    if (budget_.tokens == 0) return Lengths::only(len);
    const Lengths fits = len <= budget_.tokens ? Lengths{0, budget_.tokens + 1} : Lengths{budget_.tokens + 1, INT32_MAX};
    const std::int32_t in_page = (len - 1) % page_;  // a new page, and a full one, are not on the line of those between
    return in_page == 0 || in_page == page_ - 1 ? Lengths::only(len) : fits.within({len - in_page + 1, len - in_page + page_ - 1});
  }
  bool set_budget(std::int32_t tokens) override {
    budget_ = {tokens};
    return true;
  }
  void set_share(const Budget& share) override { budget_ = share; }
  void forget(std::int32_t index) override {
    progress_.forget(index);
    bounds_.forget(index);
    QuerySelector::forget(index);
  }

  void update(LayerStep& step) override {
    if (step.layer < dense_layers_) return;
    PageBounds bounds;
    bounds.kv = step.kv;
    bounds.page_tokens = page_;
    bounds.from = progress_.advance(step);
    bounds.bounds = rows(step);
    step.ops(bounds);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    if (step.layer < dense_layers_) return {};
    const std::int32_t* tail = per_row(step.ops, n, [&](std::int32_t r) {
      const std::int32_t pages = older_tokens(step, r) / page_;
      return step.kv.len[r] <= tokens_of(budget_, step, r) || pages <= chosen_pages(step, r) ? 0 : pages * page_;
    });
    if (all_whole(n, tail)) return {};
    const std::int64_t* first = prefix_sums(step.ops, n, [&](std::int32_t r) { return tail[r] / page_; });
    const std::int32_t* keep = per_row(step.ops, n, [&](std::int32_t r) { return tail[r] == 0 ? 0 : chosen_pages(step, r); });
    PageScores scores = page_scores(step, rows(step), first);
    scores.heads = union_ ? PageScores::Heads::kEach : PageScores::Heads::kMax;
    scores.scores = step.ops.floats(first[n] * (union_ ? step.kv.group : 1));
    step.ops(scores);
    UnitLists lists = best_units(step.ops, n, union_ ? step.kv.group : 1, first, scores.scores, keep);
    if (union_) lists = united(step, lists, first, keep);
    traffic_.track(step, lists);
    ExpandUnits pages;
    pages.num_rows = n;
    pages.lists = lists;
    pages.unit_tokens = page_;
    pages.tail = tail;
    pages.len = step.kv.len;
    return expand(step.ops, pages);
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    TierBytes bytes = held;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) bytes.gpu += ceil_div(kv.len[r], page_) * 2LL * model.head_dim * model.kv_bytes;
    return bytes;
  }

 private:
  // The newest page takes one of the budget.
  [[nodiscard]] std::int32_t chosen_pages(const LayerStep& step, std::int32_t r) const {
    return std::max(min_pages_, tokens_of(budget_, step, r) / page_) - 1;
  }
  float* const* rows(const LayerStep& step) {
    return bounds_.rows(step, [&](std::int32_t r) { return (step.kv.len[r] + page_ - 1LL) / page_ * 2 * step.kv.head_dim; });
  }

  std::int32_t page_;
  Budget budget_;
  bool union_;
  std::int32_t dense_layers_, min_pages_;
  RowProgress progress_;
  RowMemory<float> bounds_;
};

KVLAB_REGISTER(Selector, Quest, "quest", "pages whose key bounds promise the largest logits",
               "Quest: Tang et al. 2024, arXiv:2406.10774, algorithm 1");

}  // namespace

}  // namespace kvlab
