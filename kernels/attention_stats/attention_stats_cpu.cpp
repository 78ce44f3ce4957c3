#include "kernels/attention_stats/rows_cpu.h"

namespace kvlab {

namespace {

using Line = Eigen::Map<Eigen::Array<float, 1, Eigen::Dynamic>>;

void reduce_block(const AttentionStats& a, const ProbabilityBlock& block) {
  const Eigen::Index n = block.p.cols();
  const std::int64_t at = a.kv.first[block.row];
  for (std::int32_t t = 0; t < block.count; ++t) {
    const auto line = block.p.row(t).array();
    const float weight = a.weigh_by_visible ? static_cast<float>(block.visible[t] + a.visible_offset) : 1.0F;
    if (a.wants_sum) Line(a.sum + at, n) += weight * line;
    if (a.wants_sum_sq) Line(a.sum_sq + at, n) += line.square();
    if (a.wants_max) {
      Line top(a.max + at, n);
      top = top.max(line);
    }
  }
}

}  // namespace

void run_cpu(const AttentionStats& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    for_each_probability_block(a.kv, r, a.queries[a.kv.sequence(r)], a.group, [&](const ProbabilityBlock& b) { reduce_block(a, b); });
}

}  // namespace kvlab
