#include "policies/kv/scorer/key_leverage/key_leverage.h"
#include "policies/kv/scorer/value_leverage/value_leverage.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class LeverageCuda : public CudaTest {};

// In double like the CPU version: what differs is the order of sums, at a condition of at most 1e6.
TEST_F(LeverageCuda, KeyLeverageEqualsCpuVersion) {
  const std::int32_t d = 16, kv_heads = 2;
  RowsFixture<f16> rows({.kv_heads = kv_heads, .head_dim = d, .page_tokens = 8}, {0, 1, 5, 70, 40, 130}, 1);
  std::int32_t positions = 0;
  rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) { positions = std::max(positions, rows.position[slot] + 1); });
  RowArrays<float> keys({positions * kv_heads * d, positions * kv_heads * d, positions * kv_heads * d});
  for (std::size_t s = 0; s < 3; ++s) keys.row(s) = random_elements<float>(positions * kv_heads * d, 10 + s);
  keys.upload();
  for (const std::int32_t sketch : {0, 7}) {
    std::vector<float> expected(246);
    run_cpu(KeyLeverage{rows.host(), keys.host(), sketch, 3, expected.data()});
    const DeviceBuffer<float> out(246);
    run_cuda(KeyLeverage{rows.device(), keys.device(), sketch, 3, out.data()}, cuda());
    EXPECT_TRUE(all_near(out.to_host(cuda().stream()), expected, 1e-6, 1e-6));
  }
}

TEST_F(LeverageCuda, ValueLeverageEqualsCpuVersion) {
  const std::int32_t d = 16, group = 2;
  RowsFixture<f16> rows({.kv_heads = 2, .group = group, .head_dim = d, .page_tokens = 8}, {0, 1, 5, 70}, 2);
  const std::vector<float> mean = random_elements<float>(8 * d, 3);
  const DeviceBuffer<float> device_mean(mean), out(76);
  for (const std::int32_t sinks : {0, 4}) {
    std::vector<float> expected(76);
    run_cpu(ValueLeverage{rows.host(), mean.data(), sinks, 5.0F, 1e-6F, expected.data()});
    run_cuda(ValueLeverage{rows.device(), device_mean.data(), sinks, 5.0F, 1e-6F, out.data()}, cuda());
    EXPECT_TRUE(all_near(out.to_host(cuda().stream()), expected, 1e-6, 1e-5));
  }
}

}  // namespace
}  // namespace kvlab
