#include "policies/kv/disposal/merging.h"

#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/compact/compact.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

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

void attention_mass::observe(LayerStep& step, std::int32_t first_word) {
  step.ops(TokenStats{.kv = step.kv, .queries = step.in.step.data(), .first_word = first_word});
}

const float* attention_mass::sum(LayerStep& step, std::int32_t first_word, bool per_query) {
  TokenScores scores{step.kv, per_query ? TokenScores::Kind::kMean : TokenScores::Kind::kSum, first_word};
  scores.end_position = end_positions(step);
  scores.scores = step.ops.floats(step.kv.total());
  step.ops(scores);
  return scores.scores;
}

void CountingDisposal::observe(LayerStep& step) {
  for (std::int32_t r = 0; r < step.kv.num_rows; ++r) count_.at(step, r) = dropped_before(step, r);
}

PartedRows CountingDisposal::count_dropped(LayerStep& step, const Kept& kept) {
  const PartedRows rows = part_rows(step, kept);
  for (std::int32_t r = 0; r < step.kv.num_rows; ++r) count_.at(step, r) = dropped_before(step, r) + rows.num_dropped(r);
  return rows;
}

TierBytes CountingDisposal::resident(const ModelShape& model, std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv,
                                     const Format& format, const TierBytes& rows) const {
  TierBytes all = rows;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int32_t* count = count_.find(layer, seqs[static_cast<std::size_t>(kv.sequence(r))].index, r % kv.kv_heads);
    if (count != nullptr) all += bytes_of(model, layer, format, *count);
  }
  return all;
}

}  // namespace kvlab
