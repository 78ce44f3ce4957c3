#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/kv_rows.h"

// For *_cpu.cpp files only, like Eigen.
namespace kvlab {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowMap = Eigen::Map<const RowMatrix, 0, Eigen::OuterStride<>>;

// For any vector width. Results of Eigen's variable-length expressions depend on addresses.
using Lanes = Eigen::Array<float, 16, 1>;
constexpr std::int64_t kLanes = 16;

// x[0 .. n), the rest `fill`.
inline Lanes load(const float* x, std::int64_t n, float fill = 0.0F) {
  if (n >= kLanes) return Eigen::Map<const Lanes>(x);
  Lanes lanes = Lanes::Constant(fill);
  std::copy_n(x, n, lanes.data());
  return lanes;
}
inline void store(const Lanes& lanes, float* x, std::int64_t n) {
  if (n >= kLanes)
    Eigen::Map<Lanes>{x} = lanes;  // three times as fast as copy_n
  else
    std::copy_n(lanes.data(), n, x);
}

// Sum of f(a[i], b[i]) in an order independent of addresses; f(0, 0) must be 0.
template <class F>
inline float lane_sum(const float* a, const float* b, std::int64_t n, F&& f) {
  Lanes sum = Lanes::Zero();
  for (std::int64_t i = 0; i < n; i += kLanes) sum += f(load(a + i, n - i), load(b + i, n - i));
  return sum.sum();
}

inline float lane_dot(const float* a, const float* b, std::int64_t n) {
  return lane_sum(a, b, n, [](const Lanes& x, const Lanes& y) -> Lanes { return x * y; });
}

// For *_cpu.cpp files only.

// p [count, tokens], 0 where masked.
struct HeadRows {
  std::int32_t head = 0;
  std::int32_t count = 0;
  RowMatrix p;
};

inline void softmax_line(float* line, std::int32_t visible, std::int32_t columns) {
  Eigen::Map<Eigen::ArrayXf> seen(line, visible);
  if (visible > 0) {
    seen = (seen - seen.maxCoeff()).exp();
    seen /= seen.sum();
  }
  std::fill(line + visible, line + columns, 0.0F);
}

// Calls use(rows) per query head of the group and block of queries; fp32.
template <class Use>
void for_each_head_rows(const KvRows& kv, std::int32_t row, const Queries& q, Use&& use) {
  constexpr std::int32_t kBlock = 64;
  const std::int32_t d = kv.head_dim, head0 = row % kv.kv_heads * kv.group, n = kv.len[row];
  const std::int64_t stride = static_cast<std::int64_t>(kv.kv_heads) * kv.group * d;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  HeadRows rows;
  for (std::int32_t head = head0; head < head0 + kv.group; ++head) {
    for (std::int32_t t0 = 0; t0 < q.count; t0 += kBlock) {
      rows.head = head, rows.count = std::min(kBlock, q.count - t0);
      rows.p.resize(rows.count, n);
      const RowMap queries(q.data + t0 * stride + static_cast<std::int64_t>(head) * d, rows.count, d, Eigen::OuterStride<>(stride));
      for_each_run(kv, row, [&](const KvRun& run) {
        const RowMap keys(kv.k + run.slot * d, run.count, d, Eigen::OuterStride<>(d));
        rows.p.middleCols(run.begin, run.count).noalias() = scale * (queries * keys.transpose());
      });
      std::int32_t visible = 0;
      for (std::int32_t t = 0; t < rows.count; ++t) {
        while (visible < n && kv.position[kv.slot(row, visible)] <= q.first_position + t0 + t) ++visible;
        softmax_line(rows.p.row(t).data(), visible, n);
      }
      use(rows);
    }
  }
}

}  // namespace kvlab
