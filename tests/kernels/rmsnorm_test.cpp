#include "kernels/model/rmsnorm/rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvlab {
namespace {

// Lengths around Eigen's packets of 4, 8 and 16 floats.
TEST(RmsNormCpu, MatchesTheFormulaInDouble) {
  for (const std::int64_t width : {1, 15, 16, 17, 384}) {
    for (const std::int64_t tokens : {0, 1, 3}) {
      const std::size_t n = static_cast<std::size_t>(tokens * width);
      std::vector<float> in(n), residual(n), weight(static_cast<std::size_t>(width)), out(n);
      for (std::size_t i = 0; i < n; ++i) {
        in[i] = std::sin(static_cast<float>(i));
        residual[i] = std::cos(3.0F * static_cast<float>(i));
      }
      for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 1.0F + 0.1F * static_cast<float>(i % 7);
      const std::vector<float> before = residual;
      run_cpu(RmsNorm{in.data(), residual.data(), weight.data(), out.data(), tokens, width, 1e-5F});
      for (std::int64_t t = 0; t < tokens; ++t) {
        double mean_square = 0;
        for (std::int64_t i = 0; i < width; ++i) {
          const std::size_t at = static_cast<std::size_t>(t * width + i);
          EXPECT_EQ(residual[at], in[at] + before[at]);
          mean_square += std::pow(double{residual[at]}, 2) / static_cast<double>(width);
        }
        for (std::int64_t i = 0; i < width; ++i) {
          const std::size_t at = static_cast<std::size_t>(t * width + i);
          // A handful of roundings on values of order 1.
          EXPECT_NEAR(out[at], residual[at] / std::sqrt(mean_square + 1e-5) * weight[static_cast<std::size_t>(i)],
                      1e-6 * weight[static_cast<std::size_t>(i)] * 4);
        }
      }
    }
  }
}

TEST(RmsNormCpu, WithoutResidualAndInPlace) {
  std::vector<float> x{3, 4};
  const std::vector<float> weight{1, 2};
  const RmsNorm a{x.data(), nullptr, weight.data(), x.data(), 1, 2, 0.0F};
  run_cpu(a);
  const float rms = std::sqrt(12.5F);
  EXPECT_FLOAT_EQ(x[0], 3 / rms);
  EXPECT_FLOAT_EQ(x[1], 8 / rms);
  EXPECT_EQ(bytes(shape(a)), (2 * 1 + 1) * 2 * 4);
}

}  // namespace
}  // namespace kvlab
