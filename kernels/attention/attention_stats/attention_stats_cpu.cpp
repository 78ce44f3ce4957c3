#include <algorithm>

#include "base/parallel.h"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/attention/attention_stats/rows_cpu.h"

namespace kvlab {

namespace {

using Line = Eigen::Map<Eigen::Array<float, 1, Eigen::Dynamic>>;

float weight_of(const AttentionStats& a, const ProbabilityStrip& strip, std::int32_t t) {
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

void run_row(const AttentionStats& a, std::int32_t row) {
  const bool sums_alone = !a.wants_sum_sq && !a.wants_max && a.group != AttentionStats::Group::kMax;
  ProbabilityStrip strip(a.kv, row, a.queries[a.kv.sequence(row)]);
  RowMatrix p;
  std::vector<float> sums(static_cast<std::size_t>(sums_alone ? a.kv.len[row] : 0));
  while (strip.next()) {
    if (sums_alone) {
      strip.sum_queries(
          a.group == AttentionStats::Group::kMean, [&](std::int32_t t) { return weight_of(a, strip, t); }, sums.data());
      for (std::int32_t i = 0; i < strip.tokens(); ++i) a.sum[a.kv.first[row] + i] += sums[static_cast<std::size_t>(i)];
    } else {
      strip.write(a.group, p);
      reduce_strip(a, strip, p);
    }
  }
}

}  // namespace

void run_cpu(const AttentionStats& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) { run_row(a, static_cast<std::int32_t>(row)); });
}

}  // namespace kvlab
