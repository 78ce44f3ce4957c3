#include "kernels/model/layer/layer.h"
#include "tests/cuda/cuda_fixture.h"

namespace kvlab {
namespace {

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

}  // namespace
}  // namespace kvlab
