#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/lanes_cpu.h"
#include "kernels/model/rmsnorm/rmsnorm.h"

namespace kvlab {

namespace {

float mean_square(const float* x, std::int64_t width) {
  Lanes sum = Lanes::Zero();
  for (std::int64_t i = 0; i < width; i += kLanes) sum += load(x + i, width - i).square();
  return sum.sum() / static_cast<float>(width);
}

void norm(const RmsNorm& a, std::int64_t t) {
  using Row = Eigen::Map<Eigen::ArrayXf>;
  using ConstRow = Eigen::Map<const Eigen::ArrayXf>;
  const ConstRow weight(a.weight, a.width), in(a.in + t * a.width, a.width);
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

constexpr std::int64_t kTaskFloats = 1 << 15;

}  // namespace

void run_cpu(const RmsNorm& a) {
  const std::int64_t block = std::max<std::int64_t>(1, kTaskFloats / std::max<std::int64_t>(1, a.width));
  for_each_in_parallel(ceil_div(a.tokens, block), [&](std::int64_t i) {
    for (std::int64_t t = i * block; t < std::min(a.tokens, (i + 1) * block); ++t) norm(a, t);
  });
}

}  // namespace kvlab
