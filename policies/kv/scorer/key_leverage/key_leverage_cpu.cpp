#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <cmath>

#include "base/parallel.h"
#include "base/random.h"
#include "policies/kv/scorer/key_leverage/key_leverage.h"

namespace kvlab {

namespace {

Eigen::MatrixXd sketch_matrix(const KeyLeverage& a) {
  const std::int32_t d = a.kv.head_dim;
  if (a.sketch_dim == 0) return Eigen::MatrixXd::Identity(d, d);
  Eigen::MatrixXd g(d, a.sketch_dim);
  for (std::int32_t i = 0; i < d; ++i)
    for (std::int32_t j = 0; j < a.sketch_dim; ++j)
      g(i, j) =
          Draw{a.seed, Purpose::kPolicy, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(j)}.normal() / std::sqrt(a.sketch_dim);
  return g;
}

}  // namespace

void run_cpu(const KeyLeverage& a) {
  const Eigen::MatrixXd g = sketch_matrix(a);
  const std::int64_t d = a.kv.head_dim;
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    const std::int32_t n = a.kv.len[r];
    if (n == 0) return;
    Eigen::MatrixXd keys(n, d);
    for (std::int32_t i = 0; i < n; ++i) {
      const std::int64_t position = a.kv.position[a.kv.slot(r, i)];
      const float* key = a.keys[a.kv.sequence(r)] + (position * a.kv.kv_heads + r % a.kv.kv_heads) * d;
      keys.row(i) = Eigen::Map<const Eigen::VectorXf>(key, d).transpose().cast<double>();
    }
    keys.rowwise() -= keys.colwise().mean().eval();
    const Eigen::MatrixXd x = keys * g;
    Eigen::MatrixXd gram = x.transpose() * x;
    gram.diagonal().array() += 1e-6 * gram.trace() / static_cast<double>(gram.rows()) + 1e-30;
    const Eigen::LLT<Eigen::MatrixXd> factor(gram);
    const Eigen::MatrixXd half = factor.matrixL().solve(x.transpose());  // [sketch, n]
    for (std::int32_t i = 0; i < n; ++i) a.out[a.kv.first[r] + i] = static_cast<float>(half.col(i).squaredNorm());
  });
}

}  // namespace kvlab
