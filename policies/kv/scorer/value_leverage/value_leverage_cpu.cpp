#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "policies/kv/scorer/value_leverage/value_leverage.h"

namespace kvlab {

namespace {

using MatrixOfDoubles = Eigen::MatrixXd;

// K or V of a row as columns.
MatrixOfDoubles columns(const KvRows& kv, const float* data, std::int32_t row, std::int32_t begin) {
  MatrixOfDoubles x(kv.head_dim, kv.len[row] - begin);
  for (std::int32_t i = begin; i < kv.len[row]; ++i)
    x.col(i - begin) = Eigen::Map<const Eigen::VectorXf>(data + kv.slot(row, i) * kv.head_dim, kv.head_dim).cast<double>();
  return x;
}

Eigen::ArrayXd weights(const ValueLeverage& a, const MatrixOfDoubles& keys, const Eigen::VectorXd& mean) {
  const double length = std::max(mean.norm(), 1e-12);
  Eigen::ArrayXd w(keys.cols());
  for (Eigen::Index i = 0; i < keys.cols(); ++i) {
    const double cosine = keys.col(i).dot(mean) / length / std::max(keys.col(i).norm(), 1e-12);
    w[i] = static_cast<double>(a.tau) * std::clamp(cosine, -1.0, 1.0);
  }
  return (w - w.maxCoeff()).exp();
}

}  // namespace

void run_cpu(const ValueLeverage& a) {
  const std::int64_t d = a.kv.head_dim;
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    float* out = a.out + a.kv.first[r];
    std::fill_n(out, a.kv.len[r], 0.0F);
    std::int32_t begin = 0;
    while (begin < a.kv.len[r] && a.kv.position[a.kv.slot(r, begin)] < a.sinks) ++begin;
    if (begin == a.kv.len[r]) return;
    const MatrixOfDoubles keys = columns(a.kv, a.kv.k, r, begin), values = columns(a.kv, a.kv.v, r, begin);
    for (std::int32_t g = 0; g < a.kv.group; ++g) {
      const float* mean = a.mean + (static_cast<std::int64_t>(r) * a.kv.group + g) * d;
      const Eigen::ArrayXd w = weights(a, keys, Eigen::Map<const Eigen::VectorXf>(mean, d).cast<double>());
      const MatrixOfDoubles weighted = values * (w + static_cast<double>(a.epsilon)).sqrt().matrix().asDiagonal();
      const MatrixOfDoubles sum = MatrixOfDoubles::Identity(d, d) + weighted * weighted.transpose();
      const MatrixOfDoubles half = Eigen::LLT<MatrixOfDoubles>(sum).matrixL().solve(values);
      for (Eigen::Index i = 0; i < w.size(); ++i) out[begin + i] += static_cast<float>(w[i] * half.col(i).squaredNorm() / a.kv.group);
    }
  });
}

}  // namespace kvlab
