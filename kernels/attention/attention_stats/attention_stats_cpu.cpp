#include <algorithm>

#include "base/parallel.h"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/attention/attention_stats/rows_cpu.h"

namespace kvlab {

OpCall call(const AttentionStats& a) {
  OpCall c{.op = "attention_stats", .rows = a.kv.num_rows};
  const int outputs = (a.wants_sum ? 1 : 0) + (a.wants_sum_sq ? 1 : 0) + (a.wants_max ? 1 : 0);
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r], w = a.queries[a.kv.sequence(r)].count;
    if (w == 0) continue;
    const std::int64_t hidden = w > 1 ? std::min(w, n) * (std::min(w, n) - 1) / 2 : 0;  // pairs the causal mask takes away
    const std::int64_t pairs = std::max<std::int64_t>(w * n - hidden, 0);
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * a.kv.head_dim * a.kv.kv_bytes + w * a.kv.group * a.kv.head_dim * 2 + n * 4 * outputs;
    c.flops += 2 * pairs * a.kv.group * (a.kv.head_dim + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(AttentionStats)

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
