#include "policies/kv/selector/paged_selector.h"

#include <vector>

namespace kvlab {

void PagedSelector::update(LayerStep& step) {
  if (!is_dense(step.layer)) summaries_.update(step);
}

Selection PagedSelector::select(LayerStep& step) {
  if (is_dense(step.layer)) return {};
  const std::int32_t n = step.kv.num_rows;
  std::vector<Plan> plans;
  for (std::int32_t r = 0; r < n; ++r) plans.push_back(plan(step, r));
  const auto each = [&](std::int32_t Plan::*number) {
    return per_row(step, [&](std::int32_t r) { return plans[static_cast<std::size_t>(r)].*number; });
  };
  const std::int32_t* const end = each(&Plan::units);
  if (all_whole(step, end)) return {};
  const std::int32_t* const tail = per_row(step, [&](std::int32_t r) { return end[r] * unit_; });
  const std::int64_t* const first = prefix_sums(step, [&](std::int32_t r) { return end[r]; });
  const RowPlans rows{first, each(&Plan::keep), each(&Plan::head), end};
  return read(step, choose(step, rows), tail, rows.head);
}

UnitLists PagedSelector::best_by(LayerStep& step, PageScores scores, bool each_head, const RowPlans& rows) {
  const std::int32_t n = step.kv.num_rows, lists = each_head ? step.kv.group : 1;
  if (each_head) scores.heads = PageScores::Heads::kEach;
  scores.scores = step.ops.floats(scores.first[n] * lists);
  step.ops(scores);
  const UnitLists best = best_units(step.ops, n, lists, rows.first, scores.scores, rows.keep);
  return each_head ? united(step, best, rows.first, rows.keep) : best;
}

Selection PagedSelector::read(LayerStep& step, const UnitLists& lists, const std::int32_t* tail, const std::int32_t* head) {
  traffic_.track(step, lists);
  CopyUnits units{.lists = lists, .unit_tokens = unit_};
  if (head != nullptr) units.head = per_row(step, [&](std::int32_t r) { return head[r] * unit_; });
  units.tail = tail;
  return expand(step, units);
}

}  // namespace kvlab
