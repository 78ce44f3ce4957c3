#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/attention/query_moments/query_moments.h"
#include "kernels/lanes_cpu.h"

namespace kvlab {

namespace {

Eigen::MatrixXd mean_rotation(const QueryMoments& a, std::int32_t sequence) {
  const Eigen::Index d = a.head_dim, half = d / 2;
  Eigen::MatrixXd rotation = Eigen::MatrixXd::Identity(d, d);
  if (a.frequencies == nullptr) return rotation;
  for (Eigen::Index i = 0; i < half; ++i) {
    const float frequency = a.frequencies[sequence * half + i];
    double cos = 0, sin = 0;
    for (std::int32_t p = 0; p < a.num_future; ++p) {
      const float angle = static_cast<float>(a.future_begin[sequence] + p) * frequency;
      cos += static_cast<double>(std::cos(angle)), sin += static_cast<double>(std::sin(angle));
    }
    cos = cos / a.num_future * double{a.magnitude}, sin = sin / a.num_future * double{a.magnitude};
    rotation(i, i) = rotation(i + half, i + half) = cos;
    rotation(i, i + half) = -sin;
    rotation(i + half, i) = sin;
  }
  return rotation;
}

void run_head(const QueryMoments& a, std::int32_t sequence, std::int32_t head, const Eigen::MatrixXd& rotation) {
  constexpr std::int32_t kBlock = 256;  // float sums within a block, double over blocks
  const Eigen::Index d = a.head_dim, stride = static_cast<Eigen::Index>(a.q_heads) * d;
  const std::int32_t n = std::max(0, a.queries[sequence].count - a.skip_tokens);
  const float* q = n == 0 ? nullptr : a.queries[sequence].data + a.skip_tokens * stride + head * d;
  const auto block = [&](std::int32_t at) { return RowMap(q + at * stride, std::min(kBlock, n - at), d, Eigen::OuterStride<>(stride)); };
  Eigen::VectorXd mean = Eigen::VectorXd::Zero(d);
  for (std::int32_t i = 0; i < n; ++i)
    for (Eigen::Index c = 0; c < d; ++c) mean[c] += static_cast<double>(q[i * stride + c]);
  if (n > 0) mean /= n;
  const std::int64_t at = (static_cast<std::int64_t>(sequence) * a.q_heads + head) * d;
  Eigen::Map<Eigen::VectorXf>(a.mean + at, d) = (rotation * mean).cast<float>();
  if (!a.wants_covariance) return;
  Eigen::MatrixXd covariance = Eigen::MatrixXd::Zero(d, d);
  const Eigen::RowVectorXf centre = mean.cast<float>().transpose();
  for (std::int32_t i = 0; i < n; i += kBlock) {
    const RowMatrix centred = block(i).rowwise() - centre;
    const RowMatrix product = centred.transpose() * centred;
    covariance += product.cast<double>();
  }
  covariance /= std::max(1, a.unbiased ? n - 1 : n);
  Eigen::Map<RowMatrix>(a.covariance + at * d, d, d) = (rotation * covariance * rotation.transpose()).cast<float>();
}

}  // namespace

void run_cpu(const QueryMoments& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const Eigen::MatrixXd rotation = mean_rotation(a, s);
    for_each_in_parallel(a.q_heads, [&](std::int64_t h) { run_head(a, s, static_cast<std::int32_t>(h), rotation); });
  }
}

}  // namespace kvlab
