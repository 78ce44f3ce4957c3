#include "policies/kv/scorer/leverage/leverage.h"

#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class LeverageCuda : public CudaTest {};

// In double like the CPU version: what differs is the order of sums, at a condition of at most 1e6.
TEST_F(LeverageCuda, OfKeysEqualsCpuVersion) {
  const std::int32_t d = 16, kv_heads = 2;
  RowsFixture<f16> rows({.kv_heads = kv_heads, .head_dim = d, .page_tokens = 8}, {0, 1, 5, 70, 40, 130}, 1);
  std::int32_t positions = 0;
  rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) { positions = std::max(positions, rows.position[slot] + 1); });
  RowArrays<float> keys({positions * kv_heads * d, positions * kv_heads * d, positions * kv_heads * d});
  for (std::size_t s = 0; s < 3; ++s) keys.row(s) = random_elements<float>(positions * kv_heads * d, 10 + s);
  keys.upload();
  for (const std::int32_t sketch : {0, 7}) {
    std::vector<float> expected(246);
    run_cpu(Leverage{.kv = rows.host(), .keys = keys.host(), .sketch_dim = sketch, .seed = 3, .out = expected.data()});
    const DeviceBuffer<float> out(246);
    run_cuda(Leverage{.kv = rows.device(), .keys = keys.device(), .sketch_dim = sketch, .seed = 3, .out = out.data()}, cuda());
    EXPECT_TRUE(all_near(out.to_host(cuda().stream()), expected, 1e-6, 1e-6));
  }
}

TEST_F(LeverageCuda, OfValuesEqualsCpuVersion) {
  constexpr std::int32_t d = 16, group = 2;
  constexpr auto kValues = Leverage::Kind::kValues;
  RowsFixture<f16> rows({.kv_heads = 2, .group = group, .head_dim = d, .page_tokens = 8}, {0, 1, 5, 70}, 2);
  const std::vector<float> mean = random_elements<float>(8 * d, 3);
  const DeviceBuffer<float> device_mean(mean), out(76);
  for (const std::int32_t sinks : {0, 4}) {
    std::vector<float> expected(76);
    run_cpu(Leverage{.kv = rows.host(), .kind = kValues, .mean = mean.data(), .sinks = sinks, .out = expected.data()});
    run_cuda(Leverage{.kv = rows.device(), .kind = kValues, .mean = device_mean.data(), .sinks = sinks, .out = out.data()}, cuda());
    EXPECT_TRUE(all_near(out.to_host(cuda().stream()), expected, 1e-6, 1e-5));
  }
}

}  // namespace
}  // namespace kvlab
