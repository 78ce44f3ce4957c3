#include <Eigen/Core>
#include <cmath>

#include "kernels/rmsnorm/rmsnorm.h"

namespace kvlab {

void run_cpu(const RmsNorm& a) {
  using Row = Eigen::Map<Eigen::ArrayXf>;
  using ConstRow = Eigen::Map<const Eigen::ArrayXf>;
  const ConstRow weight(a.weight, a.width);
  for (std::int64_t t = 0; t < a.tokens; ++t) {
    const ConstRow in(a.in + t * a.width, a.width);
    Row out(a.out + t * a.width, a.width);
    if (a.residual != nullptr) {
      Row residual(a.residual + t * a.width, a.width);
      residual += in;
      out = residual;
    } else {
      out = in;
    }
    const float mean_square = out.square().sum() / static_cast<float>(a.width);
    out *= weight / std::sqrt(mean_square + a.epsilon);
  }
}

}  // namespace kvlab
