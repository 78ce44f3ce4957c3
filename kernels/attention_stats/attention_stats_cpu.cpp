#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/attention_stats/attention_stats.h"

namespace kvlab {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;

constexpr std::int32_t kBlock = 64;  // queries whose rows of probabilities are held at once

void add_noise(const AttentionStats& a, std::int32_t row, std::int32_t head, std::int32_t position, Eigen::Ref<Eigen::ArrayXf> z) {
  for (Eigen::Index i = 0; i < z.size(); ++i) {
    const auto token = static_cast<std::uint64_t>(a.kv.position[a.kv.slot(row, static_cast<std::int32_t>(i))]);
    const double u = Draw{a.seed, Purpose::kGumbel, token, static_cast<std::uint64_t>(position),
                          static_cast<std::uint64_t>(row) << 32U | static_cast<std::uint64_t>(head)}
                         .uniform();
    z[i] = (z[i] - static_cast<float>(std::log(-std::log(std::max(u, 1e-12))))) / a.temperature;
  }
}

// Rows of z become probabilities over the tokens visible to each query; positions ascend along a row.
void softmax_rows(const AttentionStats& a, std::int32_t row, std::int32_t head, std::int32_t first_position, const std::int32_t* visible,
                  Matrix& z, std::int32_t count) {
  for (std::int32_t t = 0; t < count; ++t) {
    auto line = z.row(t).array();
    auto seen = line.head(visible[t]);
    if (a.gumbel) {
      Eigen::ArrayXf noisy = seen;
      add_noise(a, row, head, first_position + t, noisy);
      seen = noisy;
    }
    if (visible[t] > 0) {
      seen = (seen - seen.maxCoeff()).exp();
      seen /= seen.sum();
    }
    line.tail(z.cols() - visible[t]).setZero();
  }
}

void reduce_block(const AttentionStats& a, std::int32_t row, const std::int32_t* visible, const Matrix& p, std::int32_t count) {
  const Eigen::Index n = p.cols();
  const std::int64_t at = a.kv.first[row];
  for (std::int32_t t = 0; t < count; ++t) {
    const auto line = p.row(t).array();
    const float weight = a.weigh_by_visible ? static_cast<float>(visible[t]) : 1.0F;
    if (a.wants_sum) Eigen::Map<Eigen::Array<float, 1, Eigen::Dynamic>>(a.sum + at, n) += weight * line;
    if (a.wants_sum_sq) Eigen::Map<Eigen::Array<float, 1, Eigen::Dynamic>>(a.sum_sq + at, n) += line.square();
    if (a.wants_max) {
      Eigen::Map<Eigen::Array<float, 1, Eigen::Dynamic>> top(a.max + at, n);
      top = top.max(line);
    }
  }
}

void visible_counts(const AttentionStats& a, std::int32_t row, std::int32_t first_position, std::int32_t count, std::int32_t* visible) {
  std::int32_t n = 0;
  for (std::int32_t t = 0; t < count; ++t) {
    while (n < a.kv.len[row] && a.kv.position[a.kv.slot(row, n)] <= first_position + t) ++n;
    visible[t] = n;
  }
}

void run_row(const AttentionStats& a, std::int32_t row, Matrix& z, Matrix& p) {
  const Queries& q = a.queries[a.kv.sequence(row)];
  const std::int32_t d = a.kv.head_dim, group = a.kv.group, head0 = row % a.kv.kv_heads * group;
  const std::int64_t stride = static_cast<std::int64_t>(a.kv.kv_heads) * group * d;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  std::int32_t visible[kBlock];
  for (std::int32_t t0 = 0; t0 < q.count; t0 += kBlock) {
    const std::int32_t count = std::min(kBlock, q.count - t0);
    visible_counts(a, row, q.first_position + t0, count, visible);
    z.resize(count, visible[count - 1]);
    for (std::int32_t g = 0; g < group; ++g) {
      const Map queries(q.data + t0 * stride + static_cast<std::int64_t>(head0 + g) * d, count, d, Eigen::OuterStride<>(stride));
      for_each_run(a.kv, row, [&](const KvRun& run) {
        const std::int32_t cols = std::min(run.count, visible[count - 1] - run.begin);
        if (cols <= 0) return;
        const Map keys(a.kv.k + run.slot * d, cols, d, Eigen::OuterStride<>(d));
        z.middleCols(run.begin, cols).noalias() = scale * (queries * keys.transpose());
      });
      softmax_rows(a, row, head0 + g, q.first_position + t0, visible, z, count);
      if (g == 0) {
        p = z;
      } else if (a.group == AttentionStats::Group::kMax) {
        p = p.cwiseMax(z);
      } else {
        p += z;
      }
    }
    if (a.group == AttentionStats::Group::kMean && group > 1) p /= static_cast<float>(group);
    reduce_block(a, row, visible, p, count);
  }
}

}  // namespace

void run_cpu(const AttentionStats& a) {
  Matrix z, p;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) run_row(a, r, z, p);
}

}  // namespace kvlab
