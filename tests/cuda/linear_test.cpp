#include <map>
#include <set>

#include "kernels/device/cuda/blas.h"
#include "kernels/model/layer/layer.h"
#include "tests/cuda/cuda_fixture.h"

namespace kvlab {
namespace {

class LinearCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int64_t tokens, std::int64_t in_dim, std::int64_t out_dim, bool with_bias, double tolerance) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << in_dim << " x " << out_dim << (with_bias ? " with bias" : ""));
    const auto x = random_elements<T>(tokens * in_dim, 1), w = random_elements<T>(out_dim * in_dim, 2, 0.3F);
    const auto bias = random_elements<T>(out_dim, 3);
    std::vector<float> expected(static_cast<std::size_t>(tokens * out_dim));
    run_cpu(Linear{floats(x).data(), floats(w).data(), expected.data(), nullptr, tokens, in_dim, out_dim});
    if (with_bias)
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += to_float(bias[i % static_cast<std::size_t>(out_dim)]);
    const DeviceBuffer<T> device_x(x), device_w(w), device_bias(bias);
    const auto y = same_in_every_order([&] {
      const DeviceBuffer<T> device_y(tokens * out_dim);
      run_cuda(Linear{device_x.data(), device_w.data(), device_y.data(), with_bias ? device_bias.data() : nullptr, tokens, in_dim, out_dim,
                      kElementType<T>},
               cuda());
      return device_y.to_host(cuda().stream());
    });
    // Sums of in_dim products of deviation 0.3 in fp32 in another order, then one rounding.
    EXPECT_TRUE(all_near(floats(y), expected, 1e-6 * static_cast<double>(in_dim), tolerance));
  }
};

TEST_F(LinearCuda, EqualsCpuVersion) {
  for (const bool bias : {false, true}) {
    for (const std::int64_t tokens : {1, 7, 64}) {
      check<bf16>(tokens, 64, 96, bias, 0x1p-8);
      check<f16>(tokens, 40, 16, bias, 0x1p-11);
      check<float>(tokens, 72, 24, bias, 1e-6);
    }
    check<bf16>(129, 128, 8, bias, 0x1p-8);
  }
  check<bf16>(0, 64, 64, false, 0);
  check<bf16>(64, 64, 0, false, 0);
}

TEST_F(LinearCuda, ProjectsEachRowByItsOwnMatrix) {
  constexpr std::int64_t kRows = 3, kTokens = 20, kDim = 32, kRank = 8, kGap = 16;
  const auto x = random_elements<f16>(kRows * (kTokens * kDim + kGap), 4), r = random_elements<f16>(kRows * kDim * kRank, 5);
  const DeviceBuffer<f16> device_x(x), device_r(r);
  for (const bool shared : {false, true}) {
    const DeviceBuffer<f16> y(kRows * kTokens * kRank);
    run_cuda(DeviceProject{device_x.data(), device_r.data(), y.data(), kRows, kTokens, kDim, kRank, kTokens * kDim + kGap,
                           shared ? 0 : kDim * kRank, kTokens * kRank, ElementType::kF16},
             cuda());
    std::vector<float> expected;
    for (std::int64_t b = 0; b < kRows; ++b)
      for (std::int64_t t = 0; t < kTokens; ++t)
        for (std::int64_t c = 0; c < kRank; ++c) {
          double sum = 0;
          for (std::int64_t i = 0; i < kDim; ++i)
            sum += static_cast<double>(to_float(x[static_cast<std::size_t>(b * (kTokens * kDim + kGap) + t * kDim + i)])) *
                   static_cast<double>(to_float(r[static_cast<std::size_t>((shared ? 0 : b * kDim * kRank) + i * kRank + c)]));
          expected.push_back(static_cast<float>(sum));
        }
    EXPECT_TRUE(all_near(floats(y.to_host(cuda().stream())), expected, 1e-5, 0x1p-11)) << "shared " << shared;
  }
}

// The algorithm is that of as many rows or a few more, and a row count has one.
TEST(MatrixProductRows, AreFewAndNear) {
  std::set<std::int64_t> asked;
  for (std::int64_t m = 1; m <= 8192; ++m) {
    const std::int64_t rows = algorithm_rows(m);
    asked.insert(rows);
    ASSERT_GE(rows, m);
    ASSERT_GE(rows, algorithm_rows(m - 1));
    ASSERT_EQ(algorithm_rows(rows), rows) << m;
    ASSERT_LE(rows - m, m <= 16 ? 0 : m <= 128 ? 7 : m / 8) << m;
  }
  EXPECT_EQ(asked.size(), 78U);
  EXPECT_EQ(algorithm_rows(17), 24);
  EXPECT_EQ(algorithm_rows(129), 144);
  EXPECT_EQ(algorithm_rows(8192), 8192);
}

// Counts that share an algorithm: bits do not depend on which of them came first.
TEST_F(LinearCuda, GivesTheSameBitsInAnyOrderOfCalls) {
  constexpr std::int64_t kWidth = 256;
  const auto x = random_elements<f16>(160 * kWidth, 6), w = random_elements<f16>(kWidth * kWidth, 7);
  const DeviceBuffer<f16> device_x(x), device_w(w), y(160 * kWidth);
  const auto products = [&](std::vector<std::int64_t> counts) {
    CudaContext fresh;
    std::map<std::int64_t, std::vector<float>> results;
    for (const std::int64_t m : counts) {
      run_cuda(Linear{device_x.data(), device_w.data(), y.data(), nullptr, m, kWidth, kWidth, ElementType::kF16}, fresh);
      std::vector<float> all = floats(y.to_host(fresh.stream()));
      all.resize(static_cast<std::size_t>(m * kWidth));
      results[m] = all;
    }
    return results;
  };
  const auto up = products({17, 20, 24, 130, 144}), down = products({144, 130, 24, 20, 17});
  EXPECT_EQ(up, down);
  std::vector<float> expected(static_cast<std::size_t>(130 * kWidth));
  run_cpu(Linear{floats(x).data(), floats(w).data(), expected.data(), nullptr, 130, kWidth, kWidth});
  EXPECT_TRUE(all_near(up.at(130), expected, 1e-6 * static_cast<double>(kWidth), 0x1p-11));
}

TEST_F(LinearCuda, RefusesProductsOverNothing) {
  EXPECT_THROW(multiply(MatrixProduct{nullptr, nullptr, nullptr, nullptr, 1, 1, 0}, cuda()), CudaError);
}

}  // namespace
}  // namespace kvlab
