#include "kernels/attention/merge_partials/merge_partials.h"

#include "tests/cuda/cuda_fixture.h"

namespace kvlab {
namespace {

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
      double sum = 0;
      for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p) sum += std::exp(static_cast<double>(log_sums[p * n + r]));
      if (sum == 0) continue;
      expected_sum[r] = static_cast<float>(std::log(sum));
      for (std::size_t c = 0; c < width; ++c) {
        double y = 0;
        for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p)
          if (log_sums[p * n + r] != -INFINITY)
            y += std::exp(static_cast<double>(log_sums[p * n + r])) / sum * static_cast<double>(x[(p * n + r) * width + c]);
        expected[r * width + c] = static_cast<float>(y);
      }
    }
    const DeviceBuffer<float> device_x(x), device_log_sums(log_sums), log_sum(rows);
    const DeviceBuffer<T> out(rows * d);
    run_cuda(DeviceMergePartials{device_x.data(), device_log_sums.data(), out.data(), log_sum.data(), parts, rows, d, kElementType<T>},
             cuda());
    EXPECT_TRUE(all_near(floats(out.to_host(cuda().stream())), expected, tolerance, tolerance));
    const auto sums = log_sum.to_host(cuda().stream());
    for (std::size_t r = 0; r < n; ++r)
      EXPECT_TRUE(sums[r] == expected_sum[r] || std::abs(sums[r] - expected_sum[r]) < 1e-4F) << r << ": " << sums[r];
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
