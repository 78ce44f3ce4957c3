#include <cmath>

#include "kernels/lanes_cpu.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace kvlab {

namespace {

float mean_square(const float* x, std::int64_t width) {
  Lanes sum = Lanes::Zero();
  for (std::int64_t i = 0; i < width; i += kLanes) sum += load(x + i, width - i).square();
  return sum.sum() / static_cast<float>(width);
}

}  // namespace

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
    out *= weight / std::sqrt(mean_square(out.data(), a.width) + a.epsilon);
  }
}

}  // namespace kvlab
