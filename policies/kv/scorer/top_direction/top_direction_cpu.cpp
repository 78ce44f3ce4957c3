#include <Eigen/Core>

#include "policies/kv/scorer/top_direction/top_direction.h"

namespace kvlab {

void run_cpu(const TopDirection& a) {
  const std::int64_t d = a.head_dim, heads = static_cast<std::int64_t>(a.kv_heads) * a.group;
  for (std::int32_t r = 0; r < a.num_sequences * a.kv_heads; ++r) {
    const Queries& q = a.queries[r / a.kv_heads];
    Eigen::MatrixXd gram = Eigen::MatrixXd::Zero(d, d);
    Eigen::VectorXd mean = Eigen::VectorXd::Zero(d);
    for (std::int64_t t = 0; t < q.count; ++t) {
      const float* lines = q.data + (t * heads + r % a.kv_heads * a.group) * d;
      const Eigen::MatrixXd x =
          Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(lines, a.group, d).cast<double>();
      gram.noalias() += x.transpose() * x;
      mean += x.colwise().sum().transpose();
    }
    Eigen::VectorXd u = mean;
    for (std::int32_t i = 0; i < a.iterations && u.norm() > 0; ++i) u = gram * u.normalized();
    if (u.norm() > 0) u.normalize();
    if (u.dot(mean) < 0) u = -u;
    Eigen::Map<Eigen::VectorXf>(a.out + r * d, d) = u.cast<float>();
  }
}

}  // namespace kvlab
