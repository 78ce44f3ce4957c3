#include <Eigen/Eigenvalues>

#include "engine/label/filter_moments.h"

namespace kvlab {

FilterMoments::FilterMoments(std::int32_t head_dim)
    : head_dim_(head_dim), sum_(static_cast<std::size_t>(head_dim)), square_(sum_.size() * sum_.size()) {}

void FilterMoments::add(const float* queries, std::int64_t count, std::int64_t stride) {
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<const Rows, 0, Eigen::OuterStride<>> rows(queries, count, head_dim_, Eigen::OuterStride<>(stride));
  const Eigen::MatrixXd exact = rows.cast<double>();
  Eigen::Map<Eigen::VectorXd>(sum_.data(), head_dim_) += exact.colwise().sum().transpose();
  Eigen::Map<Eigen::MatrixXd>(square_.data(), head_dim_, head_dim_).noalias() += exact.transpose() * exact;
}

std::vector<float> FilterMoments::filter() const {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(Eigen::Map<const Eigen::MatrixXd>(square_.data(), head_dim_, head_dim_));
  Eigen::VectorXd u = solver.eigenvectors().col(head_dim_ - 1);  // eigenvalues ascend
  if (u.dot(Eigen::Map<const Eigen::VectorXd>(sum_.data(), head_dim_)) < 0) u = -u;
  std::vector<float> filter;
  for (const double x : u) filter.push_back(static_cast<float>(-x));
  return filter;
}

}  // namespace kvlab
