#include <map>
#include <set>

#include "kernels/attention/merge_partials/merge_partials.h"
#include "kernels/device/cuda/blas.h"
#include "kernels/model/layer/layer.h"
#include "tests/cuda/cuda_fixture.h"
#include "tests/plain_softmax.h"

namespace kvlab {
namespace {

// Every number of the type comes back; values between two numbers go to the nearer, and from the middle to the even one.
template <class T>
void round_trips(unsigned count, double largest) {
  double before = NAN;
  for (unsigned bits = 0; bits < count; ++bits) {
    const T x{static_cast<decltype(T::bits)>(bits)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(from_float<T>(value)))) << bits;
      continue;
    }
    EXPECT_EQ(from_float<T>(value).bits, bits);
    if (std::isinf(value)) continue;
    if (bits > 0 && value > 0 && before >= 0 && value <= largest) {
      const double middle = (before + value) / 2;
      EXPECT_EQ(from_float<T>(static_cast<float>(middle)).bits, bits % 2 == 0 ? bits : bits - 1) << bits;
      EXPECT_EQ(from_float<T>(std::nextafter(static_cast<float>(middle), INFINITY)).bits, bits);
      EXPECT_EQ(from_float<T>(std::nextafter(static_cast<float>(middle), 0.0F)).bits, bits - 1);
    }
    before = value;
  }
}

TEST(Element, RoundsToNearestEven) {
  round_trips<f16>(65536, 65504);
  round_trips<fp8>(256, 448);
  round_trips<bf16>(65536, 0x1.FEp127);
}

TEST(Element, KeepsTheEnds) {
  EXPECT_EQ(to_float(from_float<f16>(65519.0F)), 65504.0F);
  EXPECT_TRUE(std::isinf(to_float(from_float<f16>(65520.0F))));
  EXPECT_EQ(to_float(from_float<fp8>(1e9F)), 448.0F);
  EXPECT_EQ(to_float(from_float<fp8>(-INFINITY)), -448.0F);
  EXPECT_TRUE(std::isnan(to_float(from_float<bf16>(NAN))));
  EXPECT_EQ(to_float(from_float<f16>(0x1p-25F)), 0.0F);
  EXPECT_EQ(to_float(from_float<f16>(0x1.8p-25F)), 0x1p-24F);
}

class EmbeddingCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int64_t tokens, std::int64_t width) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << width);
    constexpr std::int64_t kVocabulary = 11;
    const auto table = random_elements<T>(kVocabulary * width, 1);
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>((t * 7 + 3) % kVocabulary));
    std::vector<float> expected(static_cast<std::size_t>(tokens * width));
    run_cpu(Embedding{ids.data(), floats(table).data(), expected.data(), tokens, width});
    const DeviceBuffer<T> device_table(table), out(tokens * width);
    const DeviceBuffer<std::int32_t> device_ids(ids);
    run_cuda(Embedding{device_ids.data(), device_table.data(), out.data(), tokens, width, kElementType<T>}, cuda());
    EXPECT_TRUE(all_near(floats(out.to_host(cuda().stream())), expected, 0, 0));
  }
};

TEST_F(EmbeddingCuda, CopiesRows) {
  for (const std::int64_t width : {1, 7, 8, 64, 4096, 4104}) {
    check<bf16>(5, width);
    check<float>(2, width);
  }
  check<f16>(0, 64);
  check<f16>(13, 16);
}

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

class RmsNormCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int64_t tokens, std::int64_t width, bool with_residual, double tolerance) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << width << (with_residual ? " with residual" : ""));
    const auto in = random_elements<T>(tokens * width, 1, 3.0F), residual = random_elements<T>(tokens * width, 2);
    const auto weight = random_elements<T>(width, 3);
    std::vector<float> ref_in = floats(in), ref_residual = floats(residual), ref_out(in.size());
    const std::vector<float> ref_weight = floats(weight);
    if (with_residual) {  // rounded as the kernel keeps it
      for (std::size_t i = 0; i < ref_in.size(); ++i) ref_in[i] = to_float(from_float<T>(ref_in[i] + ref_residual[i]));
      ref_residual = ref_in;
    }
    run_cpu(RmsNorm{ref_in.data(), nullptr, ref_weight.data(), ref_out.data(), tokens, width, 1e-5F});

    const DeviceBuffer<T> device_in(in), device_weight(weight);
    const auto out = same_in_every_order([&] {
      const DeviceBuffer<T> device_residual(residual), device_out(tokens * width);
      run_cuda(RmsNorm{device_in.data(), with_residual ? device_residual.data() : nullptr, device_weight.data(), device_out.data(), tokens,
                       width, 1e-5F, kElementType<T>},
               cuda());
      if (with_residual) {
        EXPECT_TRUE(all_near(floats(device_residual.to_host(cuda().stream())), ref_residual, 0, 0));
      }
      return device_out.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(floats(out), ref_out, tolerance * 1e-2, tolerance));
  }
};

// One rounding of the result, half a unit in the last place: 2^-9 for bf16, 2^-12 for fp16; sums of at most 16,384 squares in fp32.
TEST_F(RmsNormCuda, EqualsCpuVersion) {
  for (const bool residual : {false, true}) {
    for (const std::int64_t width : {1, 7, 8, 64, 72, 127, 128, 256, 264, 512, 1000, 1024, 2048, 4096, 8200, 16384, 16392}) {
      check<bf16>(3, width, residual, 0x1p-8);
      check<f16>(2, width, residual, 0x1p-11);
      check<float>(2, width, residual, 1e-5);
    }
  }
  check<bf16>(0, 128, true, 0);
  for (const std::int64_t rows : {1, 15, 16, 17, 40}) check<bf16>(rows, 128, false, 0x1p-8);  // 16 rows of 16 lanes fill a block
}

TEST_F(RmsNormCuda, TakesArraysThatAreNotAligned) {
  const std::int64_t width = 128;
  const auto all = random_elements<bf16>(width + 1, 4), weight = random_elements<bf16>(width, 5);
  std::vector<float> in = floats(all), expected(static_cast<std::size_t>(width));
  run_cpu(RmsNorm{in.data() + 1, nullptr, floats(weight).data(), expected.data(), 1, width, 1e-5F});
  const DeviceBuffer<bf16> device_in(all), device_weight(weight), device_out(width);
  run_cuda(RmsNorm{device_in.data() + 1, nullptr, device_weight.data(), device_out.data(), 1, width, 1e-5F, ElementType::kBf16}, cuda());
  EXPECT_TRUE(all_near(floats(device_out.to_host(cuda().stream())), expected, 0x1p-15, 0x1p-8));
}

class SiluMulCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int64_t tokens, std::int64_t width, bool side_by_side, double tolerance) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << width << (side_by_side ? " side by side" : ""));
    const auto gate = random_elements<T>(tokens * width, 1, 20.0F), up = random_elements<T>(tokens * width, 2);
    std::vector<float> expected(gate.size());
    run_cpu(SiluMul{floats(gate).data(), floats(up).data(), expected.data(), tokens, width});
    std::vector<T> both;
    for (std::int64_t t = 0; t < tokens; ++t) {
      both.insert(both.end(), gate.begin() + t * width, gate.begin() + (t + 1) * width);
      both.insert(both.end(), up.begin() + t * width, up.begin() + (t + 1) * width);
    }
    const DeviceBuffer<T> device_gate(side_by_side ? both : gate), device_up(up);
    const auto out = same_in_every_order([&] {
      const DeviceBuffer<T> device_out(tokens * width);
      run_cuda(SiluMul{device_gate.data(), side_by_side ? device_gate.data() + width : device_up.data(), device_out.data(), tokens, width,
                       side_by_side ? 2 * width : 0, kElementType<T>},
               cuda());
      return device_out.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(floats(out), expected, 1e-30, tolerance));
  }
};

// One rounding; e^-x of |x| < 100 with an argument rounded to 2^-24 of itself, in fp32 exact to 1e-5.
TEST_F(SiluMulCuda, EqualsCpuVersion) {
  for (const bool side_by_side : {false, true})
    for (const std::int64_t width : {1, 8, 100, 4096, 4104}) {
      check<bf16>(3, width, side_by_side, 0x1p-8);
      check<float>(2, width, side_by_side, 2e-5);
    }
  check<f16>(1, 0, false, 0);
  check<bf16>(0, 8, true, 0);
}

TEST_F(SiluMulCuda, HasLimitsFarFromZero) {
  const std::vector<float> gate{-1e30F, -200, -100, -88, 0, 88, 200, 1e30F}, up(8, 1.0F);
  for (const bool gated : {false, true}) {
    const DeviceBuffer<float> device_gate(gate), device_up(up);
    run_cuda(SiluMul{device_gate.data(), gated ? device_up.data() : nullptr, device_gate.data(), 2, 4, 0, ElementType::kF32}, cuda());
    EXPECT_TRUE(all_near(device_gate.to_host(cuda().stream()), {0, 0, 0, 0, 0, 88, 200, 1e30F}, 1e-30, 1e-6));
  }
}

class MergePartialsCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int32_t parts, std::int64_t rows, std::int32_t d, double tolerance) {
    SCOPED_TRACE(testing::Message() << parts << " parts of " << rows << " x " << d);
    auto x = random_elements<float>(parts * rows * d, 1), log_sums = random_elements<float>(parts * rows, 2, 20.0F);
    const auto n = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(d);
    for (std::size_t i = 0; i < log_sums.size(); i += 3) {  // saw nothing, and wrote nothing sensible
      log_sums[i] = -INFINITY;
      std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(i * width), d, NAN);
    }
    std::vector<float> expected(n * width, 0.0F), expected_sum(n, -INFINITY);
    for (std::size_t r = 0; r < n; ++r) {
      std::vector<double> share, y(width, 0.0);
      for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p) share.push_back(static_cast<double>(log_sums[p * n + r]));
      expected_sum[r] = static_cast<float>(plain_softmax(share));
      for (std::size_t p = 0; p < share.size(); ++p)
        for (std::size_t c = 0; c < width && share[p] > 0; ++c) y[c] += share[p] * static_cast<double>(x[(p * n + r) * width + c]);
      std::copy(y.begin(), y.end(), expected.begin() + static_cast<std::ptrdiff_t>(r * width));
    }
    const DeviceBuffer<float> device_x(x), device_log_sums(log_sums), log_sum(rows);
    const DeviceBuffer<T> out(rows * d);
    run_cuda(DeviceMergePartials{device_x.data(), device_log_sums.data(), out.data(), log_sum.data(), parts, rows, d, kElementType<T>},
             cuda());
    EXPECT_TRUE(all_near(floats(out.to_host(cuda().stream())), expected, tolerance, tolerance));
    EXPECT_TRUE(all_near(log_sum.to_host(cuda().stream()), expected_sum, 1e-4, 0, true));
  }
};

TEST_F(MergePartialsCuda, EqualsTheFormula) {
  for (const std::int32_t parts : {1, 2, 7}) {
    check<float>(parts, 9, 64, 1e-5);
    check<bf16>(parts, 5, 128, 0x1p-8);  // one rounding
    check<f16>(parts, 33, 4, 0x1p-11);
  }
  check<float>(2, 0, 64, 0);
}

}  // namespace
}  // namespace kvlab
