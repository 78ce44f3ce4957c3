#include <bit>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/attention_stats/rows_cpu.h"
#include "policies/kv/scorer/group_votes/group_votes.h"

namespace kvlab {

namespace {

// Votes of the row's own query heads, mean over these, for its tokens [num_tokens].
std::vector<float> votes_of_row(const GroupVotes& a, std::int32_t row) {
  const std::int32_t s = a.kv.sequence(row), base = a.base[s], recent = a.recent[s];
  const float rise = recent > 1 ? (a.last_weight - 1) / static_cast<float>(recent - 1) : 0.0F;
  std::vector<float> votes(static_cast<std::size_t>(a.kv.len[row]), 0.0F);
  ProbabilityStrip strip(a.kv, row, a.queries[s]);
  RowMatrix p;
  while (strip.next()) {
    strip.write(AttentionStats::Group::kMean, p);
    for (std::int32_t i = strip.tokens() - 1; i >= 0; --i) {
      const std::int32_t position = a.kv.position[a.kv.slot(row, i)];
      if (position < base) break;  // positions ascend
      const std::int32_t end = base + ((position - base) / a.group_tokens + 1) * a.group_tokens;
      for (std::int32_t t = 0; t < strip.count(); ++t)
        if (const std::int32_t after = strip.position(t) - end; after >= 0 && after < recent)
          votes[static_cast<std::size_t>(i)] += (1 + rise * static_cast<float>(after)) * p(t, i);
    }
  }
  return votes;
}

}  // namespace

void run_cpu(const GroupVotes& a) {
  std::vector<std::vector<float>> votes(static_cast<std::size_t>(a.kv.num_rows));
  for_each_in_parallel(a.kv.num_rows,
                       [&](std::int64_t row) { votes[static_cast<std::size_t>(row)] = votes_of_row(a, static_cast<std::int32_t>(row)); });
  for (std::int32_t row = 0; row < a.kv.num_rows; ++row) {
    const std::int32_t first = a.kv.sequence(row) * a.kv.kv_heads;
    for (std::int32_t i = 0; i < a.kv.len[row]; ++i) {
      float sum = 0;
      for (std::int32_t r = first; r < first + a.kv.kv_heads; ++r) sum += votes[static_cast<std::size_t>(r)][static_cast<std::size_t>(i)];
      std::uint32_t& word = a.kv.word(a.word, row, i);
      word = std::bit_cast<std::uint32_t>(std::bit_cast<float>(word) + sum / static_cast<float>(a.kv.kv_heads));
    }
  }
}

}  // namespace kvlab
