#pragma once

#include <cstdint>
#include <vector>

#include "base/ceil_div.h"
#include "kernels/select/page_summaries_op.h"
#include "policies/kv/selector/row_state.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

// Unit j is a row's tokens [j * stride, j * stride + span). Restarts after an eviction.
class KeySummaries {
 public:
  // kBounds: each channel's minimum and maximum, span = stride; kMeans: mean key.
  enum class Kind : std::uint8_t { kBounds, kMeans };
  explicit KeySummaries(KvPart& part, Kind kind = Kind::kBounds, std::int32_t stride_tokens = 1)
      : kind_(kind), stride_(stride_tokens), span_(stride_tokens), progress_(part), summaries_(part) {}
  // Before update().
  void set_units(Kind kind, std::int32_t stride_tokens, std::int32_t span_tokens) {
    kind_ = kind, stride_ = stride_tokens, span_ = span_tokens;
  }

  void update(LayerStep& step) {
    const bool bounds = kind_ == Kind::kBounds;
    step.ops(PageSummaries{step.kv, bounds ? stride_ : span_, stride_, progress_.advance(step), rows(step),
                           bounds ? PageSummaries::Kind::kBounds : PageSummaries::Kind::kMeans});
  }
  // [units, 1 or 2, head_dim] per row; valid until the next call.
  float* const* rows(const LayerStep& step) {
    return summaries_.rows(step, [&](std::int32_t r) { return units(step.kv.len[r]) * vectors() * step.kv.head_dim; });
  }
  [[nodiscard]] std::int32_t units(std::int32_t tokens) const { return ceil_div(tokens, stride_); }
  [[nodiscard]] std::int64_t bytes(const ModelShape& model, const KvRows& kv) const {
    return sum_rows(kv, [&](std::int32_t r) { return units(kv.len[r]) * vectors() * model.head_dim * model.kv_bytes; });
  }

 private:
  [[nodiscard]] std::int64_t vectors() const { return kind_ == Kind::kBounds ? 2 : 1; }

  Kind kind_;
  std::int32_t stride_, span_;
  RowProgress progress_;
  RowMemory<float> summaries_;
};

class PagedSelector : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return is_dense(layer) ? 0 : 1; }
  void update(LayerStep& step) override {
    if (!is_dense(step.layer)) summaries_.update(step);
  }
  Selection select(LayerStep& step) override {
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
  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    return held.with_gpu(summaries_.bytes(model, kv));
  }

 protected:
  struct Sizes {
    std::int32_t unit_tokens = 1, dense_layers = 0;  // the first layers attend to everything
    Budget budget = {};
    KeySummaries::Kind summary = KeySummaries::Kind::kBounds;
    std::int32_t stride_tokens = unit_tokens, span_tokens = stride_tokens;  // of summaries
  };
  // In the constructor.
  void set_sizes(const Sizes& sizes) {
    budget_ = sizes.budget, unit_ = sizes.unit_tokens, dense_layers_ = sizes.dense_layers;
    summaries_.set_units(sizes.summary, sizes.stride_tokens, sizes.span_tokens);
  }

  // Units before the tail: `head` are always read, and `keep` others. units 0: reads the whole row.
  struct Plan {
    std::int32_t units = 0, keep = 0, head = 0;
  };
  struct RowPlans {
    const std::int64_t* first;              // [num_rows + 1] prefix sums of units
    const std::int32_t *keep, *head, *end;  // [num_rows]; end: units
  };
  [[nodiscard]] virtual Plan plan(const LayerStep& step, std::int32_t row) const = 0;
  // Besides head and tail.
  virtual UnitLists choose(LayerStep& step, const RowPlans& rows) = 0;

  [[nodiscard]] bool is_dense(std::int32_t layer) const { return layer < dense_layers_; }
  [[nodiscard]] std::int32_t unit_tokens() const { return unit_; }
  [[nodiscard]] std::int32_t tokens(const LayerStep& step, std::int32_t row) const { return tokens_of(budget_, step, row); }
  [[nodiscard]] std::int32_t full_units(const LayerStep& step, std::int32_t row) const { return older_tokens(step, row) / unit_; }
  // each_head: query heads choose separately and the union is read.
  UnitLists best_by(LayerStep& step, PageScores scores, bool each_head, const RowPlans& rows) {
    const std::int32_t n = step.kv.num_rows, lists = each_head ? step.kv.group : 1;
    if (each_head) scores.heads = PageScores::Heads::kEach;
    scores.scores = step.ops.floats(scores.first[n] * lists);
    step.ops(scores);
    const UnitLists best = best_units(step.ops, n, lists, rows.first, scores.scores, rows.keep);
    return each_head ? united(step, best, rows.first, rows.keep) : best;
  }
  // Tokens of the listed units, head[r] units (null: none) and the tail from token tail[r]. Counts traffic.
  Selection read(LayerStep& step, const UnitLists& lists, const std::int32_t* tail, const std::int32_t* head) {
    traffic_.track(step, lists);
    CopyUnits units{.lists = lists, .unit_tokens = unit_};
    if (head != nullptr) units.head = per_row(step, [&](std::int32_t r) { return head[r] * unit_; });
    units.tail = tail;
    return expand(step, units);
  }

  KeySummaries summaries_{*this};

 private:
  std::int32_t unit_ = 1, dense_layers_ = 0;
};

}  // namespace kvlab
