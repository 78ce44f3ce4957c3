#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/select/column_basis/column_basis.h"

namespace kvlab {

namespace {

void leading_vectors(const ColumnBasis& a, std::int32_t row) {
  const Eigen::Index d = a.head_dim;
  Eigen::MatrixXd gram(d, d);
  for (Eigen::Index i = 0; i < d; ++i)
    for (Eigen::Index j = 0; j < d; ++j) gram(i, j) = static_cast<double>(a.gram[row][i * d + j]);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(gram);
  for (Eigen::Index j = 0; j < a.width; ++j)  // eigenvalues ascend
    for (Eigen::Index c = 0; c < d; ++c) a.basis[row][j * d + c] = static_cast<float>(solver.eigenvectors()(c, d - 1 - j));
}

void largest_channels(const ColumnBasis& a, std::int32_t row) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(a.head_dim));
  std::iota(order.begin(), order.end(), 0);
  const float* size = a.abs_sum[row];
  std::stable_sort(order.begin(), order.end(), [size](std::int32_t x, std::int32_t y) { return size[x] > size[y]; });
  std::sort(order.begin(), order.begin() + a.width);
  std::fill_n(a.basis[row], static_cast<std::int64_t>(a.width) * a.head_dim, 0.0F);
  for (std::int32_t j = 0; j < a.width; ++j)
    a.basis[row][static_cast<std::int64_t>(j) * a.head_dim + order[static_cast<std::size_t>(j)]] = 1.0F;
}

}  // namespace

void run_cpu(const ColumnBasis& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    if (a.chosen[r / a.kv_heads] == 0) continue;
    if (a.skew) {
      leading_vectors(a, r);
    } else {
      largest_channels(a, r);
    }
  }
}

}  // namespace kvlab
