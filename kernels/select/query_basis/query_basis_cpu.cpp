#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/dot_cpu.h"
#include "kernels/select/query_basis/query_basis.h"

namespace kvlab {

namespace {

void add_query(const QueryGram& a, std::int32_t row, const float* q) {
  const std::int64_t d = a.head_dim;
  for (std::int64_t c = 0; c < d; ++c) a.abs_sum[row][c] += std::fabs(q[c]);
  if (!a.wants_gram) return;
  for (std::int64_t i = 0; i < d; ++i)
    for (std::int64_t c = 0; c < d; c += kLanes) {
      float* line = a.gram[row] + i * d + c;
      store(load(line, d - c) + q[i] * load(q + c, d - c), line, d - c);
    }
}

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

void run_cpu(const QueryGram& a) {
  const std::int64_t d = a.head_dim, heads = static_cast<std::int64_t>(a.kv_heads) * a.group;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int32_t s = r / a.kv_heads;
    if (a.fresh[s] == 2) continue;
    if (a.fresh[s] == 1) {
      std::fill_n(a.abs_sum[r], d, 0.0F);
      if (a.wants_gram) std::fill_n(a.gram[r], d * d, 0.0F);
    }
    for (std::int64_t t = 0; t < a.queries[s].count; ++t)
      for (std::int64_t h = 0; h < a.group; ++h)
        add_query(a, r, a.queries[s].data + (t * heads + static_cast<std::int64_t>(r % a.kv_heads) * a.group + h) * d);
  }
}

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

void run_cpu(const ProjectKeys& a) {
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    for (std::int32_t i = a.from[r]; i < a.kv.len[r]; ++i)
      for (std::int64_t j = 0; j < a.width; ++j)
        a.partial[r][static_cast<std::int64_t>(i) * a.width + j] = lane_dot(a.kv.key(r, i), a.basis[r] + j * d, d);
}

}  // namespace kvlab
