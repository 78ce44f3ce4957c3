#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/select/block_max/block_max.h"
#include "kernels/select/page_bounds/page_bounds.h"
#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

// Large pages judged by the bounds of the small logical pages they hold, so that page size and selection grain part ways; a
// choice serves for some steps. LServe, Yang et al. 2025, arXiv:2502.14866
class LServe final : public QuerySelector<UnitTraffic>, public TakesShare {
 public:
  explicit LServe(Params& p)
      : page_(p.optional<std::int32_t>("page_tokens", 64, 1, 1 << 16, "tokens of a physical page")),
        logical_(p.optional<std::int32_t>("logical_tokens", 16, 1, 1 << 16, "tokens whose keys share one pair of bounds")),
        budget_{p.optional<std::int32_t>("budget_tokens", 4096, 1, 1 << 24, "tokens attended to per KV head, the newest page included")},
        reuse_steps_(p.optional<std::int32_t>("reuse_steps", 4, 1, 1 << 16, "decode steps that one choice serves")),
        union_(p.choice("group", {{"max", false}, {"union", true}}, true,
                        "query heads of a KV head: the best bound counts, or each chooses and all is read")),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 0, 0, 1024, "first layers that attend to everything")) {
    if (page_ % logical_ != 0) p.fail_at("logical_tokens", "'page_tokens' must be a multiple of 'logical_tokens'");
  }

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(std::max(0, seq.end() - seq.prompt_tokens - 1) % reuse_steps_); }
  bool set_budget(std::int32_t tokens) override {
    budget_ = {tokens};
    return true;
  }
  void set_share(const Budget& share) override { budget_ = share; }
  void forget(std::int32_t index) override {
    progress_.forget(index);
    bounds_.forget(index);
    pages_.forget(index);
    choices_.forget(index);
    QuerySelector::forget(index);
  }

  void update(LayerStep& step) override {
    if (step.layer < dense_layers_) return;
    PageBounds bounds;
    bounds.kv = step.kv;
    bounds.page_tokens = logical_;
    bounds.from = progress_.advance(step);
    bounds.bounds = rows(step);
    step.ops(bounds);
  }

  Selection select(LayerStep& step) override {
    if (step.layer < dense_layers_) return {};
    const std::int32_t n = step.kv.num_rows;
    refresh(step);
    const std::int32_t* tail = per_row(step.ops, n, [&](std::int32_t r) { return choices_.at(step, r).tail; });
    if (all_whole(n, tail)) return {};
    UnitLists lists;
    lists.count = per_row(step.ops, n, [&](std::int32_t r) { return choices_.at(step, r).count; });
    lists.rows = pages_.rows(step, [](std::int32_t) { return 0; });
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
    for (std::int32_t r = 0; r < kv.num_rows; ++r) bytes.gpu += ceil_div(kv.len[r], logical_) * 2LL * model.head_dim * model.kv_bytes;
    return bytes;
  }

 private:
  // The last choice of a row; tail 0: everything.
  struct Choice {
    RowMark mark;
    std::int32_t tail = 0, count = 0;
  };

  // Chooses anew in rows whose choice is too old or was made over other tokens.
  void refresh(LayerStep& step) {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t* keep = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      Choice& c = choices_.at(step, r);
      keep[r] = 0;
      const SeqStep& seq = seq_of(step, r);
      // Turns are counted from the prompt's end, so that a step's work follows from lengths alone.
      const std::int32_t age = std::max(0, seq.end() - seq.prompt_tokens - 1) % reuse_steps_;
      const std::int32_t len = step.kv.len[r], pages = std::max(0, older_tokens(step, r) - age) / page_;
      if (age > 0 && c.mark.grew_to(seq, len)) continue;
      const std::int32_t budget = tokens_of(budget_, step, r), chosen_pages = std::max(1, budget / page_ - 1);
      const bool whole = len - age <= budget || pages <= chosen_pages;
      c = whole ? Choice{} : Choice{{len, seq.end()}, pages * page_, chosen_pages};
      keep[r] = c.count;
    }
    if (std::all_of(keep, keep + n, [](std::int32_t k) { return k == 0; })) return;
    const std::int64_t* first =
        prefix_sums(step.ops, n, [&](std::int32_t r) { return keep[r] == 0 ? 0 : choices_.at(step, r).tail / page_; });
    const UnitLists lists = choose(step, first, keep);
    KeepUnits kept;
    kept.num_rows = n;
    kept.lists = lists;
    kept.to = pages_.rows(step, [&](std::int32_t r) { return lists.size(r); });
    step.ops(kept);
    for (std::int32_t r = 0; r < n; ++r)
      if (keep[r] > 0) choices_.at(step, r).count = static_cast<std::int32_t>(lists.size(r));
  }

  UnitLists choose(LayerStep& step, const std::int64_t* first, const std::int32_t* keep) {
    const std::int32_t n = step.kv.num_rows, ratio = page_ / logical_, lists = union_ ? step.kv.group : 1;
    const std::int64_t* logical_first = prefix_sums(step.ops, n, [&](std::int32_t r) { return ratio * (first[r + 1] - first[r]); });
    PageScores scores = page_scores(step, rows(step), logical_first);
    scores.heads = union_ ? PageScores::Heads::kEach : PageScores::Heads::kMax;
    scores.scores = step.ops.floats(logical_first[n] * lists);
    step.ops(scores);
    BlockMax pages;
    pages.num_rows = n * lists;
    pages.stride = pages.span = ratio;
    pages.in_first = prefix_sums(step.ops, n * lists, [&](std::int32_t i) { return ratio * (first[i / lists + 1] - first[i / lists]); });
    pages.in = scores.scores;
    pages.first = prefix_sums(step.ops, n * lists, [&](std::int32_t i) { return first[i / lists + 1] - first[i / lists]; });
    pages.out = step.ops.floats(first[n] * lists);
    step.ops(pages);
    const UnitLists best = best_units(step.ops, n, lists, first, pages.out, keep);
    return union_ ? united(step, best, first, keep) : best;
  }

  float* const* rows(const LayerStep& step) {
    return bounds_.rows(step, [&](std::int32_t r) { return (step.kv.len[r] + logical_ - 1LL) / logical_ * 2 * step.kv.head_dim; });
  }

  std::int32_t page_, logical_;
  Budget budget_;
  std::int32_t reuse_steps_;
  bool union_;
  std::int32_t dense_layers_;
  RowProgress progress_;
  RowMemory<float> bounds_;
  RowMemory<std::int32_t> pages_;
  PerRow<Choice> choices_;
};

KVLAB_REGISTER(Selector, LServe, "lserve", "large pages judged by the key bounds of their logical pages, chosen every few steps",
               "LServe: Yang et al. 2025, arXiv:2502.14866");

}  // namespace

}  // namespace kvlab
