#include <vector>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/attention/delta_rows/delta_rows.h"
#include "kernels/dot_cpu.h"

namespace kvlab {

namespace {

using DeltaChannels = Eigen::Map<Eigen::ArrayXf>;
using ConstDeltaChannels = Eigen::Map<const Eigen::ArrayXf>;

// Attention of row i in query head h.
Eigen::ArrayXf dense_row(const DeltaRows& a, std::int64_t i, std::int64_t h) {
  const std::int64_t d = a.head_dim, n = a.visible(i), first = a.kv_before + i + 1 - n, kv_head = h / (a.q_heads / a.kv_heads);
  const float* const q = a.q + (i * a.q_heads + h) * d;
  const auto at = [&](const float* x, std::int64_t j) { return x + ((first + j) * a.kv_heads + kv_head) * d; };
  Eigen::ArrayXf weight(n);
  for (std::int64_t j = 0; j < n; ++j) weight[j] = a.scale * lane_dot(q, at(a.k, j), d);
  weight = (weight - weight.maxCoeff()).exp();
  weight /= weight.sum();
  Eigen::ArrayXf out = Eigen::ArrayXf::Zero(d);
  for (std::int64_t j = 0; j < n; ++j) out += weight[j] * ConstDeltaChannels(at(a.v, j), d);
  return out;
}

}  // namespace

void run_cpu(const DeltaRows& a) {
  const std::int64_t d = a.head_dim, strides = ceil_div(a.corrected(), a.stride), tasks = strides + a.tail();
  for_each_in_parallel(tasks * a.q_heads, [&](std::int64_t task) {
    const std::int64_t t = task / a.q_heads, h = task % a.q_heads;
    const bool is_tail = t >= strides;
    const std::int64_t row = is_tail ? a.corrected() + t - strides : t * a.stride;
    const auto out = [&](std::int64_t i) { return DeltaChannels(a.out + (i * a.q_heads + h) * d, d); };
    const Eigen::ArrayXf dense = dense_row(a, row, h);
    if (is_tail) {
      out(row) = dense;
      return;
    }
    const Eigen::ArrayXf difference = dense - out(row);
    for (std::int64_t i = row; i < std::min(row + a.stride, a.corrected()); ++i) out(i) += difference;
  });
}

}  // namespace kvlab
