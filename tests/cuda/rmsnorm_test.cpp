#include "kernels/model/layer/layer.h"
#include "tests/cuda/cuda_fixture.h"

namespace kvlab {
namespace {

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

}  // namespace
}  // namespace kvlab
