#include <Eigen/Eigenvalues>

#include "policies/kv/format/main_directions/main_directions.h"

namespace kvlab {

void main_directions(const float* vectors, std::int64_t count, std::int32_t d, std::int32_t rank, float* out) {
  Eigen::MatrixXd moment = Eigen::MatrixXd::Zero(d, d);
  for (std::int64_t t = 0; t < count; ++t)
    moment.selfadjointView<Eigen::Lower>().rankUpdate(Eigen::Map<const Eigen::VectorXf>(vectors + t * d, d).cast<double>());
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solved(moment);
  for (std::int32_t i = 0; i < rank; ++i)
    Eigen::Map<Eigen::VectorXf>(out + std::int64_t{i} * d, d) = solved.eigenvectors().col(d - 1 - i).cast<float>();
}

}  // namespace kvlab
