#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/attention_stats/attention_stats.h"

// For *_cpu.cpp files alone, like Eigen itself.
namespace kvlab {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr std::int32_t kQueryBlock = 64;  // queries whose rows of probabilities are held at once

// Consecutive queries over the first `visible[count - 1]` tokens of a row.
struct ProbabilityBlock {
  std::int32_t row = 0, count = 0, first_position = 0;
  const std::int32_t* visible = nullptr;  // [count] tokens each query sees, ascending
  RowMatrix p;                            // [count, visible[count - 1]] reduced over the group, 0 where masked
};

// Turns z of one query head, [count, tokens] with the first visible[t] of line t meant, into something else before the softmax.
struct NoLogitChange {
  void operator()(const ProbabilityBlock&, std::int32_t /*head*/, RowMatrix& /*z*/) const {}
};

// How many tokens of the row the queries at first_position.. see; positions ascend along a row.
inline void count_visible(const KvRows& kv, std::int32_t row, std::int32_t first_position, std::int32_t count, std::int32_t* visible) {
  std::int32_t n = 0;
  for (std::int32_t t = 0; t < count; ++t) {
    while (n < kv.len[row] && kv.position[kv.slot(row, n)] <= first_position + t) ++n;
    visible[t] = n;
  }
}

inline void softmax_lines(const ProbabilityBlock& block, RowMatrix& z) {
  for (std::int32_t t = 0; t < block.count; ++t) {
    auto line = z.row(t).array();
    auto seen = line.head(block.visible[t]);
    if (block.visible[t] > 0) {
      seen = (seen - seen.maxCoeff()).exp();
      seen /= seen.sum();
    }
    line.tail(z.cols() - block.visible[t]).setZero();
  }
}

inline void fill_logits(const KvRows& kv, const Queries& q, const ProbabilityBlock& block, std::int32_t head, RowMatrix& z) {
  using Map = Eigen::Map<const RowMatrix, 0, Eigen::OuterStride<>>;
  const std::int32_t d = kv.head_dim, seen = block.visible[block.count - 1];
  const std::int64_t stride = static_cast<std::int64_t>(kv.kv_heads) * kv.group * d, t0 = block.first_position - q.first_position;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  const Map queries(q.data + t0 * stride + static_cast<std::int64_t>(head) * d, block.count, d, Eigen::OuterStride<>(stride));
  for_each_run(kv, block.row, [&](const KvRun& run) {
    const std::int32_t cols = std::min(run.count, seen - run.begin);
    if (cols <= 0) return;
    const Map keys(kv.k + run.slot * d, cols, d, Eigen::OuterStride<>(d));
    z.middleCols(run.begin, cols).noalias() = scale * (queries * keys.transpose());
  });
}

// Calls use(block) for the queries of the row's sequence in order. `change(block, query head, z)` may alter the logits.
template <class Use, class Change = NoLogitChange>
void for_each_probability_block(const KvRows& kv, std::int32_t row, const Queries& q, AttentionStats::Group reduce, Use&& use,
                                Change&& change = {}) {
  const std::int32_t head0 = row % kv.kv_heads * kv.group;
  std::int32_t visible[kQueryBlock];
  ProbabilityBlock block{row, 0, 0, visible, {}};
  RowMatrix z;
  for (std::int32_t t0 = 0; t0 < q.count; t0 += kQueryBlock) {
    block.count = std::min(kQueryBlock, q.count - t0);
    block.first_position = q.first_position + t0;
    count_visible(kv, row, block.first_position, block.count, visible);
    z.resize(block.count, visible[block.count - 1]);
    for (std::int32_t g = 0; g < kv.group; ++g) {
      fill_logits(kv, q, block, head0 + g, z);
      change(block, head0 + g, z);
      softmax_lines(block, z);
      if (g == 0) {
        block.p = z;
      } else if (reduce == AttentionStats::Group::kMax) {
        block.p = block.p.cwiseMax(z);
      } else {
        block.p += z;
      }
    }
    if (reduce == AttentionStats::Group::kMean && kv.group > 1) block.p /= static_cast<float>(kv.group);
    use(block);
  }
}

}  // namespace kvlab
