#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/select/page_scores/page_scores.h"
#include "kernels/select/unit_lists_op.h"
#include "policies/kv/selector/row_state.h"
#include "policies/kv/selector/selector.h"

// A row's head and tail are always attended to; units (pages, chunks, tokens) between them are chosen.
namespace kvlab {

inline void settle_rows(const LayerStep& step, std::string_view purpose, std::int32_t* counts) {
  step.ops.settle(purpose, step.layer, {counts, static_cast<std::size_t>(step.kv.num_rows)});
}

inline std::int32_t older_tokens(const LayerStep& step, std::int32_t row) {
  return std::max(0, step.kv.len[row] - seq_of(step, row).new_tokens);
}

// All tokens if the row lost any.
inline std::int32_t held_prompt_tokens(const LayerStep& step, std::int32_t row) {
  const SeqStep& seq = seq_of(step, row);
  return step.kv.len[row] == seq.end() ? std::min(seq.end(), seq.prompt_tokens) : step.kv.len[row];
}

inline bool keeps_all(const LayerStep& step, const std::int64_t* first, const std::int32_t* keep) {
  for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
    if (keep[r] < first[r + 1] - first[r]) return false;
  return true;
}

// tail 0: the whole row is attended to.
inline bool all_whole(const LayerStep& step, const std::int32_t* tail) {
  return std::all_of(tail, tail + step.kv.num_rows, [](std::int32_t t) { return t == 0; });
}

// `first`: units to score
PageScores page_scores(const LayerStep& step, const float* const* summaries, const std::int64_t* first,
                       PageScores::Kind kind = PageScores::Kind::kBound, PageScores::Heads heads = PageScores::Heads::kMax);
// Returns scores [first[num_rows]].
float* run_scores(LayerStep& step, PageScores scores);

// keep[r] best units per row; ties go to the lower unit. lists > 1: per query head, scores as PageScores::Heads::kEach.
UnitLists best_units(Ops& ops, std::int32_t num_rows, std::int32_t lists, const std::int64_t* first, const float* scores,
                     const std::int32_t* keep);
inline UnitLists best_units(const LayerStep& step, const std::int64_t* first, const float* scores, const std::int32_t* keep) {
  return best_units(step.ops, step.kv.num_rows, 1, first, scores, keep);
}

// Reduced over query heads. Rows of sequences with skip[s] = 1 are empty (null: none).
struct TokenProbabilities {
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  float* scores = nullptr;
};
TokenProbabilities token_probabilities(LayerStep& step, AttentionStats::Group group, const std::int32_t* skip);

// Exact counts.
UnitLists united(LayerStep& step, const UnitLists& lists, const std::int64_t* first, const std::int32_t* keep);

// To -infinity in [0, head[r]) and [tail[r], end).
void mask_ends(const LayerStep& step, const std::int64_t* first, const std::int32_t* head, const std::int32_t* tail, float* scores);

// Of all rows.
Selection expand(const LayerStep& step, CopyUnits units);

// Units of `from` at places `picks`.
UnitLists pick_units(LayerStep& step, const UnitLists& from, const UnitLists& picks);

inline UnitLists no_units(const LayerStep& step) {
  return {.first = prefix_sums(step, [](std::int32_t) { return 0; }), .unit = step.ops.ints(0)};
}

// One query per sequence, of numbers [num_sequences, q_heads * head_dim]; null on shapes.
std::vector<Queries> queries_over(const LayerStep& step, const float* numbers);

// Units that rows read until they choose again.
class KeptUnits {
 public:
  // tail 0: the whole row is read.
  struct Choice {
    RowMark mark;
    std::int32_t tail = 0, count = 0;
  };
  explicit KeptUnits(KvPart& part) : choices_(part), units_(part) {}
  Choice& at(const LayerStep& step, std::int32_t row) { return choices_.at(step, row); }
  std::int32_t* tails(const LayerStep& step) {
    return per_row(step, [&](std::int32_t r) { return at(step, r).tail; });
  }
  std::int32_t* counts(const LayerStep& step) {
    return per_row(step, [&](std::int32_t r) { return at(step, r).count; });
  }
  std::int32_t* const* units(const LayerStep& step) {
    return units_.rows(step, [](std::int32_t) { return 0; });
  }
  UnitLists lists(const LayerStep& step) { return {.rows = units(step), .count = counts(step)}; }
  // Rows with an empty list keep theirs.
  void keep(LayerStep& step, const UnitLists& lists) {
    step.ops(
        CopyUnits{.num_rows = step.kv.num_rows, .lists = lists, .to = units_.rows(step, [&](std::int32_t r) { return lists.size(r); })});
  }

 private:
  PerRow<Choice> choices_;
  RowMemory<std::int32_t> units_;
};

// Units of the last step that are read again.
class ReuseTraffic {
 public:
  explicit ReuseTraffic(KvPart& part) : last_(part), last_count_(part) {}
  Traffic take() { return std::exchange(traffic_, {}); }

 protected:
  RowMemory<std::int32_t> last_;
  PerRow<std::int32_t> last_count_;
  Traffic traffic_;
};

class UnitTraffic : public ReuseTraffic {
 public:
  using ReuseTraffic::ReuseTraffic;
  void track(LayerStep& step, const UnitLists& lists);
};

// Counter: UnitTraffic, or TierTraffic if units are in CPU memory.
template <class Counter>
class QuerySelector : public Selector {
 public:
  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  Traffic take_traffic() override { return traffic_.take(); }

 protected:
  Counter traffic_{*this};
};

inline bool is_given(const Budget& budget) { return budget.tokens > 0 || budget.frac > 0; }

inline std::int32_t tokens_of(const Budget& budget, const LayerStep& step, std::int32_t row) {
  return budget.of(seq_of(step, row).prompt_tokens);
}

struct AttendedParts {
  std::int32_t sinks, recent, top;
};

// `own` if no budget is given; otherwise at most 1/4 first and 1/2 latest tokens.
inline AttendedParts parts_of(const AttendedParts& own, const Budget& given, std::int32_t tokens) {
  if (!is_given(given)) return own;
  const std::int32_t sinks = std::min(own.sinks, tokens / 4), recent = std::min(own.recent, std::max(1, tokens / 2));
  return {sinks, recent, std::max(0, tokens - sinks - recent)};
}

template <class Base>
class Budgeted : public Base {
 public:
  [[nodiscard]] bool takes_budget() const final { return true; }
  void set_budget(const Budget& budget) final { budget_ = budget, is_set_ = true; }

 protected:
  explicit Budgeted(const Budget& own = {}) : budget_(own) {}
  Budget budget_;  // the experiment's or the selector's own; not given: other parameters apply
  bool is_set_ = false;
};

// The GPU holds the last step's tokens, CPU memory the rest.
class TierTraffic : public ReuseTraffic {
 public:
  explicit TierTraffic(KvPart& part) : ReuseTraffic(part), held_(part) {}
  // When a prompt completes, units from(r) and later stay on the GPU.
  template <class From>
  void begin(const LayerStep& step, From&& from) {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      if (seq_of(step, r).completes_prompt()) hold_from(step, r, from(r));
  }
  // After the last tracked step.
  void hold_from(const LayerStep& step, std::int32_t r, std::int32_t unit) { held_.at(step, r).from = unit; }
  // all: rows are read whole. Returns it.
  bool reads_all(const LayerStep& step, bool all) {
    for (std::int32_t r = 0; all && r < step.kv.num_rows; ++r) hold_from(step, r, 0);
    return all;
  }
  // asked: units that may need a fetch; now: all read, with this step's token. unit_bytes: transferred per unit of a row (keys, values or
  // both); disk_unit_bytes: of these from disk, on average.
  void track(LayerStep& step, const UnitLists& asked, const UnitLists& now, std::int64_t unit_bytes, std::int64_t disk_unit_bytes = 0);

 private:
  struct Held {
    std::int32_t from = std::numeric_limits<std::int32_t>::max();
  };
  PerRow<Held> held_;
};

inline UnitLists lists_of(const Selection& selection) { return {.first = selection.index_first, .unit = selection.index}; }

// After the first head[r].
UnitLists in_row(LayerStep& step, const Selection& selection, const std::int32_t* head, const std::int32_t* count);

// Of a completed prompt, [0, head_of(r)) and [held_from(r), end) stay on the GPU.
class TierSelector : public QuerySelector<TierTraffic> {
 public:
  Selection stays(LayerStep& step) override;

 protected:
  virtual std::int32_t head_of(const LayerStep&, std::int32_t /*row*/) { return 0; }
  virtual std::int32_t held_from(const LayerStep& step, std::int32_t row) = 0;
};

TierBytes to_host(const TierBytes& held, std::int64_t bytes);

TierBytes keep_on_gpu(const TierBytes& held, std::int64_t part, std::int64_t whole);

// For methods that fetch before this step's query is known.
class LastQueries {
 public:
  explicit LastQueries(KvPart& part) : memory_(part), known_(part) {}
  // Kept queries, or this step's if none.
  std::span<const Queries> before(const LayerStep& step);
  void keep(LayerStep& step);

 private:
  RowMemory<float> memory_;
  PerRow<char> known_;
  std::vector<Queries> view_;
};

}  // namespace kvlab
