#include <Eigen/Core>

#include "kernels/linear/linear.h"

namespace kvlab {

void run_cpu(const Linear& a) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  if (a.tokens == 0 || a.out_dim == 0) return;
  const Eigen::Map<const Matrix> x(a.x, a.tokens, a.in_dim), w(a.w, a.out_dim, a.in_dim);
  Eigen::Map<Matrix>(a.y, a.tokens, a.out_dim).noalias() = x * w.transpose();
}

}  // namespace kvlab
