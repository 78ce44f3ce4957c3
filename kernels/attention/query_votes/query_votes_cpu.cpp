#include <algorithm>
#include <bit>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/attention_stats/rows_cpu.h"
#include "kernels/attention/query_votes/query_votes.h"

namespace kvlab {

namespace {

// Mean votes of a row's query heads, for its tokens.
std::vector<float> votes_of_all(const QueryVotes& a, std::int32_t row) {
  const Queries& queries = a.queries[a.kv.sequence(row)];
  const float rise = a.rise(a.kv.sequence(row));
  std::vector<float> votes(static_cast<std::size_t>(a.kv.len[row]), 0.0F), some(votes.size());
  ProbabilityStrip strip(a.kv, row, queries);
  while (strip.next()) {
    const auto weight = [&](std::int32_t t) { return 1 + rise * static_cast<float>(strip.position(t) - queries.first_position); };
    strip.sum_queries(true, weight, some.data());
    for (std::int32_t i = 0; i < strip.tokens(); ++i) votes[static_cast<std::size_t>(i)] += some[static_cast<std::size_t>(i)];
  }
  return votes;
}

std::vector<float> votes_after_groups(const QueryVotes& a, std::int32_t row) {
  const std::int32_t s = a.kv.sequence(row), base = a.groups.base[s], recent = a.groups.recent[s], group = a.groups.group_tokens;
  const float rise = a.rise(s);
  std::vector<float> votes(static_cast<std::size_t>(a.kv.len[row]), 0.0F);
  ProbabilityStrip strip(a.kv, row, a.queries[s]);
  RowMatrix p;
  while (strip.next()) {
    strip.write(AttentionStats::Group::kMean, p);
    for (std::int32_t i = strip.tokens() - 1; i >= 0; --i) {
      const std::int32_t position = a.kv.position[a.kv.slot(row, i)];
      if (position < base) break;  // positions ascend
      const std::int32_t end = base + ((position - base) / group + 1) * group;
      for (std::int32_t t = 0; t < strip.count(); ++t)
        if (const std::int32_t after = strip.position(t) - end; after >= 0 && after < recent)
          votes[static_cast<std::size_t>(i)] += (1 + rise * static_cast<float>(after)) * p(t, i);
    }
  }
  return votes;
}

void write_means(const QueryVotes& a, std::int32_t s, const std::vector<std::vector<float>>& votes) {
  const std::int64_t n = a.tokens(s);
  const float share = 1.0F / static_cast<float>(std::max(1, a.queries[s].count) * a.kv.kv_heads);
  std::fill_n(a.out + a.first[s], n, 0.0F);
  for (std::int32_t row = s * a.kv.kv_heads; row < (s + 1) * a.kv.kv_heads; ++row)
    for (std::int64_t i = 0; i < n; ++i) a.out[a.first[s] + i] += share * votes[static_cast<std::size_t>(row)][static_cast<std::size_t>(i)];
}

void add_to_words(const QueryVotes& a, std::int32_t s, const std::vector<std::vector<float>>& votes) {
  const std::int32_t row0 = s * a.kv.kv_heads, row_end = row0 + a.kv.kv_heads;
  for (std::int32_t row = row0; row < row_end; ++row)
    for (std::int32_t i = 0; i < a.kv.len[row]; ++i) {
      float sum = 0;
      for (std::int32_t r = row0; r < row_end; ++r) sum += votes[static_cast<std::size_t>(r)][static_cast<std::size_t>(i)];
      std::uint32_t& word = a.kv.word(a.groups.word, row, i);
      word = std::bit_cast<std::uint32_t>(std::bit_cast<float>(word) + sum / static_cast<float>(a.kv.kv_heads));
    }
}

}  // namespace

void run_cpu(const QueryVotes& a) {
  std::vector<std::vector<float>> votes(static_cast<std::size_t>(a.kv.num_rows));
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t at) {
    const auto row = static_cast<std::int32_t>(at);
    votes[static_cast<std::size_t>(at)] = a.has_groups() ? votes_after_groups(a, row) : votes_of_all(a, row);
  });
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    if (a.has_groups())
      add_to_words(a, s, votes);
    else
      write_means(a, s, votes);
  }
}

}  // namespace kvlab
