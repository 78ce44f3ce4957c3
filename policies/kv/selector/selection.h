#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/select/page_scores/page_scores.h"
#include "kernels/select/unit_lists/unit_lists.h"
#include "policies/kv/part.h"
#include "policies/kv/selector/row_state.h"

// Steps that selectors share. A row is cut into a head and a tail that are always attended to and units (pages, chunks, tokens)
// in between, of which some are chosen.
namespace kvlab {

// Running sums of count(i), i < n, from 0 on: where rows start in ragged arrays.
template <class F>
const std::int64_t* prefix_sums(Ops& ops, std::int32_t n, F&& count) {
  std::int64_t* first = ops.host_longs(n + 1);
  first[0] = 0;
  for (std::int32_t i = 0; i < n; ++i) first[i + 1] = first[i] + count(i);
  return first;
}

// One number per row.
template <class F>
std::int32_t* per_row(Ops& ops, std::int32_t n, F&& value) {
  std::int32_t* x = ops.host_ints(n);
  for (std::int32_t i = 0; i < n; ++i) x[i] = value(i);
  return x;
}

// The sequence that a row belongs to.
inline const SeqStep& seq_of(const LayerStep& step, std::int32_t row) { return step.seqs[static_cast<std::size_t>(step.kv.sequence(row))]; }

// Tokens of a row that were there before this step.
inline std::int32_t older_tokens(const LayerStep& step, std::int32_t row) {
  return std::max(0, step.kv.len[row] - seq_of(step, row).new_tokens);
}

// Tokens of the prompt in the row, as far as is known: of a row that lost tokens all count.
inline std::int32_t held_prompt_tokens(const LayerStep& step, std::int32_t row) {
  const SeqStep& seq = seq_of(step, row);
  return step.kv.len[row] == seq.end() ? std::min(seq.end(), seq.prompt_tokens) : step.kv.len[row];
}

// True when rows keep all of their units.
inline bool keeps_all(std::int32_t num_rows, const std::int64_t* first, const std::int32_t* keep) {
  for (std::int32_t r = 0; r < num_rows; ++r)
    if (keep[r] < first[r + 1] - first[r]) return false;
  return true;
}

// Rows that are attended to as a whole have their tail at 0. True when all are.
inline bool all_whole(std::int32_t num_rows, const std::int32_t* tail) {
  return std::all_of(tail, tail + num_rows, [](std::int32_t t) { return t == 0; });
}

// PageScores over this step's rows and queries; `first` of the units to be scored.
PageScores page_scores(const LayerStep& step, const float* const* summaries, const std::int64_t* first);

// The keep[r] best of the row's units [first], as lists; ties go to the lower unit. `lists` > 1: each row's query heads choose separately,
// with scores in the layout of PageScores::Heads::kEach.
UnitLists best_units(Ops& ops, std::int32_t num_rows, std::int32_t lists, const std::int64_t* first, const float* scores,
                     const std::int32_t* keep);

// Probability that the step's queries give to each token, reduced over the row's query heads. Rows of sequences with skip[s] = 1
// are empty (skip null: none).
struct TokenProbabilities {
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  float* scores = nullptr;
};
TokenProbabilities token_probabilities(LayerStep& step, AttentionStats::Group group, const std::int32_t* skip);

// The union of the units that a row's query heads chose; the counts are settled.
UnitLists united(LayerStep& step, const UnitLists& lists, const std::int64_t* first, const std::int32_t* keep);

// Scores of the tokens (or units) [0, head[r]) and [tail[r], row's end), which are attended to anyway, become -infinity.
void mask_ends(Ops& ops, std::int32_t num_rows, const std::int64_t* first, const std::int32_t* head, const std::int32_t* tail,
               float* scores);

// Tokens of the listed units between head and tail (ExpandUnits has the details).
Selection expand(Ops& ops, ExpandUnits units);

// Counts units and those that were chosen in the last step too.
class UnitTraffic {
 public:
  void track(LayerStep& step, const UnitLists& lists);
  Traffic take();
  void forget(std::int32_t index);

 private:
  RowMemory<std::int32_t> last_;
  PerRow<std::int32_t> last_count_;
  Traffic traffic_;
};

// A selector that chooses by this step's queries. `Counter` counts the units that it reads: UnitTraffic, or TierTraffic if some of them are
// in CPU memory.
template <class Counter>
class QuerySelector : public Selector {
 public:
  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.step_queries = true;
    return needs;
  }
  void forget(std::int32_t index) override { traffic_.forget(index); }
  Traffic take_traffic() override { return traffic_.take(); }

 protected:
  Counter traffic_;
};

}  // namespace kvlab
