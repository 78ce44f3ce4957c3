#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/select/page_scores/page_scores.h"
#include "kernels/select/unit_lists_op.h"
#include "policies/kv/selector/row_state.h"
#include "policies/kv/selector/selector.h"

// A row's head and tail are always attended to; units (pages, chunks, tokens) between them are chosen.
namespace kvlab {

template <class F>
const std::int64_t* prefix_sums(Ops& ops, std::int32_t n, F&& count) {
  std::int64_t* first = ops.host_longs(n + 1);
  first[0] = 0;
  for (std::int32_t i = 0; i < n; ++i) first[i + 1] = first[i] + count(i);
  return first;
}

template <class F>
std::int32_t* per_row(Ops& ops, std::int32_t n, F&& value) {
  std::int32_t* x = ops.host_ints(n);
  for (std::int32_t i = 0; i < n; ++i) x[i] = value(i);
  return x;
}

inline const SeqStep& seq_of(const LayerStep& step, std::int32_t row) { return step.seqs[static_cast<std::size_t>(step.kv.sequence(row))]; }

inline std::int32_t older_tokens(const LayerStep& step, std::int32_t row) {
  return std::max(0, step.kv.len[row] - seq_of(step, row).new_tokens);
}

// All tokens if the row lost any.
inline std::int32_t held_prompt_tokens(const LayerStep& step, std::int32_t row) {
  const SeqStep& seq = seq_of(step, row);
  return step.kv.len[row] == seq.end() ? std::min(seq.end(), seq.prompt_tokens) : step.kv.len[row];
}

inline bool keeps_all(std::int32_t num_rows, const std::int64_t* first, const std::int32_t* keep) {
  for (std::int32_t r = 0; r < num_rows; ++r)
    if (keep[r] < first[r + 1] - first[r]) return false;
  return true;
}

// tail 0: the whole row is attended to.
inline bool all_whole(std::int32_t num_rows, const std::int32_t* tail) {
  return std::all_of(tail, tail + num_rows, [](std::int32_t t) { return t == 0; });
}

// `first`: units to score
PageScores page_scores(const LayerStep& step, const float* const* summaries, const std::int64_t* first);

// keep[r] best units per row; ties go to the lower unit. lists > 1: per query head, scores as PageScores::Heads::kEach.
UnitLists best_units(Ops& ops, std::int32_t num_rows, std::int32_t lists, const std::int64_t* first, const float* scores,
                     const std::int32_t* keep);

// Reduced over query heads. Rows of sequences with skip[s] = 1 are empty (null: none).
struct TokenProbabilities {
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  float* scores = nullptr;
};
TokenProbabilities token_probabilities(LayerStep& step, AttentionStats::Group group, const std::int32_t* skip);

// Exact counts.
UnitLists united(LayerStep& step, const UnitLists& lists, const std::int64_t* first, const std::int32_t* keep);

// To -infinity in [0, head[r]) and [tail[r], end).
void mask_ends(Ops& ops, std::int32_t num_rows, const std::int64_t* first, const std::int32_t* head, const std::int32_t* tail,
               float* scores);

Selection expand(Ops& ops, ExpandUnits units);

class UnitTraffic {
 public:
  explicit UnitTraffic(KvPart& part) : last_(part), last_count_(part) {}
  void track(LayerStep& step, const UnitLists& lists);
  Traffic take();

 private:
  RowMemory<std::int32_t> last_;
  PerRow<std::int32_t> last_count_;
  Traffic traffic_;
};

// Counter: UnitTraffic, or TierTraffic if units are in CPU memory.
template <class Counter>
class QuerySelector : public Selector {
 public:
  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.step_queries = true;
    return needs;
  }
  Traffic take_traffic() override { return traffic_.take(); }

 protected:
  Counter traffic_{*this};
};

}  // namespace kvlab
