#include "policies/kv/disposal/merging.h"

#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/compact/compact_rows.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

const float* token_scores(LayerStep& step, TokenScores::Kind kind, std::int32_t first_word) {
  TokenScores scores{step.kv, kind, first_word};
  scores.end_position = end_positions(step);
  scores.scores = step.ops.floats(step.kv.total());
  step.ops(scores);
  return scores.scores;
}

}  // namespace

PartedRows part_rows(LayerStep& step, const Kept& kept) {
  const KvRows& kv = step.kv;
  std::int64_t* const first = step.ops.host_longs(kv.num_rows + 1);
  for (std::int32_t r = 0; r <= kv.num_rows; ++r) first[r] = kv.first[r] - kept.index_first[r];
  PartedRows rows{kv, kept.index_first, kept.index, first, nullptr};
  std::int32_t* const dropped = step.ops.ints(rows.total_dropped());
  step.ops(CopyUnits{kv.num_rows, {kept.index_first, kept.index}, CopyUnits::Kind::kOthers, nullptr, first, nullptr, dropped});
  rows.dropped = dropped;
  return rows;
}

void compact(LayerStep& step, const Kept& kept) { step.ops(CompactRows{step.kv, kept.index_first, kept.index}); }

Needs attention_mass::needs() {
  Needs needs;
  needs.step_queries = true;
  return needs;
}

void attention_mass::observe(LayerStep& step, std::int32_t first_word) {
  step.ops(TokenStats{.kv = step.kv, .queries = step.in.step.data(), .first_word = first_word});
}

const float* attention_mass::sum(LayerStep& step, std::int32_t first_word) {
  return token_scores(step, TokenScores::Kind::kSum, first_word);
}

const float* attention_mass::per_query(LayerStep& step, std::int32_t first_word) {
  return token_scores(step, TokenScores::Kind::kMean, first_word);
}

}  // namespace kvlab
