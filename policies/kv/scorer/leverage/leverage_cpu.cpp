#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>

#include "base/parallel.h"
#include "policies/kv/scorer/leverage/leverage.h"

namespace kvlab {

namespace {

using Eigen::MatrixXd;

// x^T sum^-1 x of each column of x.
Eigen::ArrayXd forms(const MatrixXd& sum, const MatrixXd& x) {
  const MatrixXd half = Eigen::LLT<MatrixXd>(sum).matrixL().solve(x);
  Eigen::ArrayXd form(x.cols());
  for (Eigen::Index i = 0; i < x.cols(); ++i) form[i] = half.col(i).squaredNorm();
  return form;
}

// at(i), a vector of head_dim, as column i - begin.
template <class At>
MatrixXd columns(const KvRows& kv, std::int32_t row, std::int32_t begin, At&& at) {
  MatrixXd x(kv.head_dim, kv.len[row] - begin);
  for (std::int32_t i = begin; i < kv.len[row]; ++i)
    x.col(i - begin) = Eigen::Map<const Eigen::VectorXf>(at(i), kv.head_dim).template cast<double>();
  return x;
}

void score_keys(const Leverage& a, const MatrixXd& g, std::int32_t r, float* out) {
  const KvRows& kv = a.kv;
  MatrixXd keys = columns(kv, r, 0, [&](std::int32_t i) {
                    const std::int64_t position = kv.position[kv.slot(r, i)];
                    return a.keys[kv.sequence(r)] + (position * kv.kv_heads + r % kv.kv_heads) * kv.head_dim;
                  }).transpose();
  keys.rowwise() -= keys.colwise().mean().eval();
  const MatrixXd x = keys * g;
  MatrixXd gram = x.transpose() * x;
  gram.diagonal().array() += 1e-6 * gram.trace() / static_cast<double>(gram.rows()) + 1e-30;
  Eigen::Map<Eigen::ArrayXf>(out, x.rows()) = forms(gram, x.transpose()).cast<float>();
}

Eigen::ArrayXd weights(const Leverage& a, const MatrixXd& keys, const Eigen::VectorXd& mean) {
  const double length = std::max(mean.norm(), 1e-12);
  Eigen::ArrayXd w(keys.cols());
  for (Eigen::Index i = 0; i < keys.cols(); ++i) {
    const double cosine = keys.col(i).dot(mean) / length / std::max(keys.col(i).norm(), 1e-12);
    w[i] = static_cast<double>(a.tau) * std::clamp(cosine, -1.0, 1.0);
  }
  return (w - w.maxCoeff()).exp();
}

void score_values(const Leverage& a, std::int32_t r, float* out) {
  const KvRows& kv = a.kv;
  const std::int64_t d = kv.head_dim;
  std::fill_n(out, kv.len[r], 0.0F);
  std::int32_t begin = 0;
  while (begin < kv.len[r] && kv.position[kv.slot(r, begin)] < a.sinks) ++begin;
  if (begin == kv.len[r]) return;
  const MatrixXd keys = columns(kv, r, begin, [&](std::int32_t i) { return kv.key(r, i); });
  const MatrixXd values = columns(kv, r, begin, [&](std::int32_t i) { return kv.value(r, i); });
  for (std::int32_t g = 0; g < kv.group; ++g) {
    const float* mean = a.mean + (static_cast<std::int64_t>(r) * kv.group + g) * d;
    const Eigen::ArrayXd w = weights(a, keys, Eigen::Map<const Eigen::VectorXf>(mean, d).cast<double>());
    const MatrixXd weighted = values * (w + static_cast<double>(a.epsilon)).sqrt().matrix().asDiagonal();
    const Eigen::ArrayXd form = forms(MatrixXd::Identity(d, d) + weighted * weighted.transpose(), values);
    for (Eigen::Index i = 0; i < w.size(); ++i) out[begin + i] += static_cast<float>(w[i] * form[i] / kv.group);
  }
}

}  // namespace

void run_cpu(const Leverage& a) {
  const bool is_keys = a.kind == Leverage::Kind::kKeys;
  MatrixXd g = MatrixXd::Identity(a.kv.head_dim, a.features());
  for (std::int32_t i = 0; i < a.kv.head_dim; ++i)
    for (std::int32_t j = 0; is_keys && j < a.sketch_dim; ++j) g(i, j) = a.sketch(i, j);
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    float* const out = a.out + a.kv.first[r];
    if (!is_keys)
      score_values(a, r, out);
    else if (a.kv.len[r] > 0)
      score_keys(a, g, r, out);
  });
}

}  // namespace kvlab
