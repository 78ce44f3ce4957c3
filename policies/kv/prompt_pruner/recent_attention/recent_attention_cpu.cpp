#include <algorithm>

#include "base/parallel.h"
#include "kernels/attention/attention_stats/rows_cpu.h"
#include "policies/kv/prompt_pruner/recent_attention/recent_attention.h"

namespace kvlab {

namespace {

// Weighted sum over the row's queries, mean over its group, added to `sums` [tokens of the row].
void add_recent_row(const RecentAttention& a, std::int32_t row, std::vector<float>& sums) {
  const Queries& queries = a.queries[a.kv.sequence(row)];
  const float rise = queries.count > 1 ? (a.last_weight - 1) / static_cast<float>(queries.count - 1) : 0.0F;
  ProbabilityStrip strip(a.kv, row, queries);
  std::vector<float> some(sums.size());
  while (strip.next()) {
    const auto weight = [&](std::int32_t t) { return 1 + rise * static_cast<float>(strip.position(t) - queries.first_position); };
    strip.sum_queries(true, weight, some.data());
    for (std::int32_t i = 0; i < strip.tokens(); ++i) sums[static_cast<std::size_t>(i)] += some[static_cast<std::size_t>(i)];
  }
}

}  // namespace

void run_cpu(const RecentAttention& a) {
  std::vector<std::vector<float>> of_row(static_cast<std::size_t>(a.kv.num_rows));
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t at) {
    const auto row = static_cast<std::int32_t>(at);
    std::vector<float>& sums = of_row[static_cast<std::size_t>(at)];
    sums.assign(static_cast<std::size_t>(a.kv.len[row]), 0.0F);
    add_recent_row(a, row, sums);
  });
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    float* const out = a.out + a.first[s];
    const std::int64_t n = a.first[s + 1] - a.first[s];
    const float share = 1.0F / static_cast<float>(std::max(1, a.queries[s].count) * a.kv.kv_heads);
    std::fill_n(out, n, 0.0F);
    for (std::int32_t row = s * a.kv.kv_heads; row < (s + 1) * a.kv.kv_heads; ++row)
      for (std::int64_t i = 0; i < n; ++i) out[i] += share * of_row[static_cast<std::size_t>(row)][static_cast<std::size_t>(i)];
  }
}

}  // namespace kvlab
