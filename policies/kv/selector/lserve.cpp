#include <algorithm>

#include "kernels/score/pool1d_op.h"
#include "policies/kv/selector/paged_selector.h"

namespace kvlab {

namespace {

class LServe final : public PagedSelector {
 public:
  explicit LServe(Params& p) {
    const auto page = p.optional<std::int32_t>("page_tokens", 64, 1, 1 << 16, "tokens of a physical page");
    const auto logical = p.optional<std::int32_t>("logical_tokens", 16, 1, 1 << 16, "tokens whose keys share one pair of bounds");
    const auto budget =
        p.optional<std::int32_t>("budget_tokens", 4096, 1, 1 << 24, "tokens attended to per KV head, the newest page included");
    reuse_steps_ = p.optional<std::int32_t>("reuse_steps", 4, 1, 1 << 16, "decode steps that one choice serves");
    unites_ = p.choice("group", {{"max", false}, {"union", true}}, true,
                       "query heads of a KV head: the best bound counts, or each chooses and all is read");
    const auto dense = p.optional<std::int32_t>("dense_layers", 0, 0, 1024, "first layers that attend to everything");
    if (page % logical != 0) p.fail_at("logical_tokens", "'page_tokens' must be a multiple of 'logical_tokens'");
    ratio_ = page / logical;
    set_sizes({.unit_tokens = page, .dense_layers = dense, .budget = {budget}, .stride_tokens = logical});
  }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(age(seq)); }

  Selection select(LayerStep& step) override {
    if (is_dense(step.layer)) return {};
    refresh(step);
    const std::int32_t* tail = choices_.tails(step);
    if (all_whole(step, tail)) return {};
    return read(step, choices_.lists(step), tail, nullptr);
  }

 protected:
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    const std::int32_t old = age(seq_of(step, r)), budget = tokens(step, r);
    const std::int32_t pages = std::max(0, older_tokens(step, r) - old) / unit_tokens(), chosen = std::max(1, budget / unit_tokens() - 1);
    return step.kv.len[r] - old <= budget || pages <= chosen ? Plan{} : Plan{pages, chosen};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    const std::int32_t n = step.kv.num_rows, lists = unites_ ? step.kv.group : 1;
    const auto pages_of = [&](std::int32_t i) { return rows.first[i / lists + 1] - rows.first[i / lists]; };
    const std::int64_t* logical_first = prefix_sums(step, [&](std::int32_t r) { return ratio_ * (rows.first[r + 1] - rows.first[r]); });
    PageScores scores = page_scores(step, summaries_.rows(step), logical_first);
    scores.heads = unites_ ? PageScores::Heads::kEach : PageScores::Heads::kMax;
    scores.scores = step.ops.floats(logical_first[n] * lists);
    step.ops(scores);
    Pool1d pages{.num_rows = n * lists, .width = ratio_, .kind = Pool1d::Kind::kBlockMax, .stride = ratio_};
    pages.unit_first = prefix_sums(step.ops, n * lists, [&](std::int32_t i) { return ratio_ * pages_of(i); });
    pages.units = scores.scores;
    pages.first = prefix_sums(step.ops, n * lists, pages_of);
    pages.scores = step.ops.floats(rows.first[n] * lists);
    step.ops(pages);
    const UnitLists best = best_units(step.ops, n, lists, rows.first, pages.scores, rows.keep);
    return unites_ ? united(step, best, rows.first, rows.keep) : best;
  }

 private:
  // From the prompt's end, so that work depends on lengths only.
  [[nodiscard]] std::int32_t age(const SeqStep& seq) const { return std::max(0, seq.end() - seq.prompt_tokens - 1) % reuse_steps_; }

  void refresh(LayerStep& step) {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t *keep = step.ops.host_ints(n), *end = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      KeptUnits::Choice& c = choices_.at(step, r);
      keep[r] = end[r] = 0;
      const SeqStep& seq = seq_of(step, r);
      if (age(seq) > 0 && c.mark.grew_to(seq, step.kv.len[r])) continue;
      const Plan plan = this->plan(step, r);
      c = {};
      if (plan.units > 0) c = {{step.kv.len[r], seq.end()}, plan.units * unit_tokens(), plan.keep};
      keep[r] = plan.keep, end[r] = plan.units;
    }
    if (all_whole(step, keep)) return;
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return end[r]; });
    const UnitLists chosen = choose(step, {first, keep, nullptr, end});
    choices_.keep(step, chosen);
    for (std::int32_t r = 0; r < n; ++r)
      if (keep[r] > 0) choices_.at(step, r).count = static_cast<std::int32_t>(chosen.size(r));
  }

  std::int32_t ratio_ = 1, reuse_steps_ = 1;
  bool unites_ = false;
  KeptUnits choices_{*this};  // pages
};

KVLAB_REGISTER(Selector, LServe, "lserve", "large pages judged by the key bounds of their logical pages, chosen every few steps",
               "LServe: Yang et al. 2025, arXiv:2502.14866");

}  // namespace

}  // namespace kvlab
