#include <algorithm>
#include <bit>

#include "base/parallel.h"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/attention/attention_stats/rows_cpu.h"

namespace kvlab {

namespace {

using Line = Eigen::Map<Eigen::Array<float, 1, Eigen::Dynamic>>;

float weight_of(const AttentionStats& a, const ProbabilityStrip& strip, std::int32_t t) {
  if (a.has_votes()) return a.vote_weight(a.kv.sequence(strip.row())).of(0, strip.position(t));
  return a.weigh_by_visible ? static_cast<float>(strip.visible(t) + a.visible_offset) : 1.0F;
}

void reduce_strip(const AttentionStats& a, const ProbabilityStrip& strip, const RowMatrix& p) {
  const Eigen::Index n = p.cols();
  const std::int64_t at = a.kv.first[strip.row()];
  for (std::int32_t t = 0; t < strip.count(); ++t) {
    const auto line = p.row(t).array();
    if (a.wants_sum) Line(a.sum + at, n) += weight_of(a, strip, t) * line;
    if (a.wants_sum_sq) Line(a.sum_sq + at, n) += line.square();
    if (a.wants_max) {
      Line top(a.max + at, n);
      top = top.max(line);
    }
  }
}

void add_votes(const AttentionStats& a, const ProbabilityStrip& strip, const RowMatrix& p) {
  const VoteWeight weight = a.vote_weight(a.kv.sequence(strip.row()));
  float* const sum = a.sum + a.kv.first[strip.row()];
  for (std::int32_t i = strip.tokens() - 1; i >= 0; --i) {
    const std::int32_t position = a.kv.position[a.kv.slot(strip.row(), i)];
    if (position < weight.begin) break;  // positions ascend
    for (std::int32_t t = 0; t < strip.count(); ++t)
      if (const float w = weight.of(position, strip.position(t)); w != 0) sum[i] += w * p(t, i);
  }
}

void run_row(const AttentionStats& a, std::int32_t row) {
  ProbabilityStrip strip(a.kv, row, a.queries[a.kv.sequence(row)]);
  RowMatrix p;
  std::vector<float> sums(static_cast<std::size_t>(a.only_sums() ? a.kv.len[row] : 0));
  while (strip.next()) {
    if (a.only_sums()) {
      strip.sum_queries(
          a.group == AttentionStats::Group::kMean, [&](std::int32_t t) { return weight_of(a, strip, t); }, sums.data());
      for (std::int32_t i = 0; i < strip.tokens(); ++i) a.sum[a.kv.first[row] + i] += sums[static_cast<std::size_t>(i)];
    } else {
      strip.write(a.group, p);
      a.has_groups() ? add_votes(a, strip, p) : reduce_strip(a, strip, p);
    }
  }
}

// a.sum: of each row.
void join_rows(const AttentionStats& a, std::int32_t s) {
  const std::int32_t row0 = s * a.kv.kv_heads, end = row0 + a.kv.kv_heads, n = a.kv.len[row0];
  const float share = 1.0F / static_cast<float>(std::max(1, a.queries[s].count) * a.kv.kv_heads);
  for (std::int32_t i = 0; i < n; ++i) {
    float sum = 0, mean = 0;
    for (std::int32_t r = row0; r < end; ++r) sum += a.sum[a.kv.first[r] + i], mean += share * a.sum[a.kv.first[r] + i];
    if (!a.has_groups()) a.votes.out[a.votes.first[s] + i] = mean;
    for (std::int32_t r = row0; r < end && a.has_groups(); ++r) {
      std::uint32_t& word = a.kv.word(a.votes.word, r, i);
      word = std::bit_cast<std::uint32_t>(std::bit_cast<float>(word) + sum / static_cast<float>(a.kv.kv_heads));
    }
  }
}

}  // namespace

void run_cpu(const AttentionStats& a) {
  AttentionStats rows = a;
  std::vector<float> sums(static_cast<std::size_t>(a.has_votes() ? a.kv.total() : 0));
  if (a.has_votes()) rows.sum = sums.data();
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) { run_row(rows, static_cast<std::int32_t>(row)); });
  for (std::int32_t s = 0; s < a.kv.num_sequences() && a.has_votes(); ++s) join_rows(rows, s);
}

}  // namespace kvlab
