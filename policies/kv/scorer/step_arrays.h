#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/score/protect_op.h"
#include "kernels/score/score_map_op.h"
#include "policies/kv/budget.h"
#include "policies/kv/step.h"

// From lengths and positions only.
namespace kvlab {

// One past each sequence's last token.
inline const std::int32_t* end_positions(LayerStep& step) {
  std::int32_t* end = step.ops.host_ints(static_cast<std::int64_t>(step.seqs.size()));
  for (std::size_t s = 0; s < step.seqs.size(); ++s) end[s] = step.seqs[s].end();
  return end;
}

inline void protect_ends(LayerStep& step, const Protected& stay, float* scores, bool above_max = false) {
  const auto sequences = static_cast<std::int64_t>(step.seqs.size());
  std::int32_t *begin = step.ops.host_ints(sequences), *end = step.ops.host_ints(sequences);
  for (std::size_t s = 0; s < step.seqs.size(); ++s) begin[s] = stay.sinks, end[s] = step.seqs[s].end() - stay.recent;
  step.ops(Protect{step.kv, begin, end, scores, false, above_max});
}

// Per sequence and layer.
inline const std::int64_t* sequence_seeds(LayerStep& step) {
  std::int64_t* seeds = step.ops.host_longs(static_cast<std::int64_t>(step.seqs.size()));
  for (std::size_t s = 0; s < step.seqs.size(); ++s)
    seeds[s] =
        static_cast<std::int64_t>(Draw{step.seed, Purpose::kPolicy, step.seqs[s].draws, 0, static_cast<std::uint64_t>(step.layer)}.bits());
  return seeds;
}

inline Queries queries_from(const Queries& q, std::int32_t first_position, const ModelShape& model) {
  const std::int32_t skipped = std::clamp(first_position - q.first_position, 0, q.count);
  const std::int64_t values = static_cast<std::int64_t>(skipped) * model.q_heads * model.head_dim;
  return {q.data == nullptr ? nullptr : q.data + values, q.count - skipped, q.first_position + skipped};
}

inline std::vector<Queries> last_queries(std::span<const Queries> all, std::int32_t count, const ModelShape& model) {
  std::vector<Queries> last;
  for (const Queries& q : all) last.push_back(queries_from(q, q.first_position + q.count - (count < q.count ? count : q.count), model));
  return last;
}

inline void clear_scores(LayerStep& step, float* scores, bool decode_only = false) {
  const KvRows& kv = step.kv;
  std::int32_t *begin = step.ops.host_ints(kv.num_rows), *end = step.ops.host_ints(kv.num_rows);
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    begin[r] = 0;
    end[r] = decode_only && !step.seqs[static_cast<std::size_t>(kv.sequence(r))].decoding() ? 0 : kv.len[r];
  }
  step.ops(ScoreMap::fill(kv.num_rows, kv.first, begin, end, 0.0F, 0.0F, scores));
}

// Attention summed over queries, mean over the group.
inline void sum_attention(LayerStep& step, const Queries* queries, float* scores) {
  clear_scores(step, scores);
  step.ops(AttentionStats{.kv = step.kv, .queries = queries, .sum = scores});
}

}  // namespace kvlab
