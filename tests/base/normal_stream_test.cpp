#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace kvlab {
namespace {

TEST(NormalStream, MomentsAndTails) {
  constexpr std::size_t kCount = 1 << 20;
  std::vector<float> x(kCount);
  NormalStream({7, Purpose::kTest, 1}).fill(0, x);
  double mean = 0, square = 0, fourth = 0, product = 0;
  std::size_t beyond_one = 0, beyond_three = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double v = x[i];
    mean += v / kCount;
    square += v * v / kCount;
    fourth += v * v * v * v / kCount;
    if (i > 0) product += v * x[i - 1] / kCount;
    beyond_one += std::fabs(v) > 1 ? 1 : 0;
    beyond_three += std::fabs(v) > 3 ? 1 : 0;
  }
  EXPECT_NEAR(mean, 0, 4e-3);  // four standard errors each
  EXPECT_NEAR(square, 1, 7e-3);
  EXPECT_NEAR(fourth, 3, 5e-2);
  EXPECT_NEAR(product, 0, 4e-3);
  EXPECT_NEAR(static_cast<double>(beyond_one) / kCount, 0.3173, 2e-3);
  EXPECT_NEAR(static_cast<double>(beyond_three) / kCount, 0.0027, 3e-4);
}

TEST(NormalStream, ANumberDependsOnItsPlaceAlone) {
  const NormalStream stream({7, Purpose::kTest, 1});
  std::vector<float> whole(64), part(13);
  stream.fill(0, whole);
  stream.fill(8, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 8));
  std::vector<float> other(64);
  NormalStream({7, Purpose::kTest, 2}).fill(0, other);
  EXPECT_NE(whole, other);
  stream.fill(0, std::span<float>());
}

}  // namespace
}  // namespace kvlab
