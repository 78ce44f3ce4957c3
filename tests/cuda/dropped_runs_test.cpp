#include <algorithm>
#include <limits>

#include "kernels/storage/token_copy_op.h"
#include "policies/kv/disposal/key_links_op.h"
#include "tests/cuda/parts_fixture.h"

namespace kvlab {
namespace {

class DroppedRunsCuda : public CudaTest {};

TEST_F(DroppedRunsCuda, KeyRunsEqualCpuVersion) {
  PartsFixture<f16> parts({.kv_heads = 2, .head_dim = 5, .page_tokens = 8}, {0, 1, 300, 70, 9, 40}, {0, 1, 60, 20, 0, 39}, 1);
  const auto total = static_cast<std::size_t>(parts.total_dropped());
  for (const float min_cosine : {-2.0F, -0.5F, 0.0F, 0.9F}) {
    std::vector<std::int32_t> expected(total, -7);
    run_cpu(KeyLinks{parts.host(), KeyLinks::Kind::kRuns, min_cosine, expected.data()});
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<std::int32_t> out(parts.total_dropped());
      run_cuda(KeyLinks{parts.device(), KeyLinks::Kind::kRuns, min_cosine, out.data()}, cuda());
      return out.to_host(cuda().stream());
    });
    EXPECT_EQ(got, expected);
  }
}

TEST_F(DroppedRunsCuda, KeyPivotsEqualCpuVersion) {
  PartsFixture<f16> parts({.kv_heads = 2, .head_dim = 5, .page_tokens = 8}, {0, 1, 300, 70, 9, 40}, {0, 1, 60, 20, 0, 39}, 1);
  std::vector<float> scores = random_elements<float>(parts.rows.first.back(), 3);
  for (std::size_t i = 0; i < scores.size(); ++i)
    scores[i] = i % 17 == 0 ? std::numeric_limits<float>::infinity() : std::max(scores[i], 0.0F);  // protected, and ties at 0
  for (const float min_cosine : {-2.0F, -0.5F, 0.0F, 0.9F}) {
    std::vector<float> expected = scores;
    run_cpu(KeyLinks{{parts.rows.host()}, KeyLinks::Kind::kPivots, min_cosine, nullptr, expected.data()});
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<float> out(scores);
      run_cuda(KeyLinks{{parts.rows.device()}, KeyLinks::Kind::kPivots, min_cosine, nullptr, out.data()}, cuda());
      return out.to_host(cuda().stream());
    });
    EXPECT_EQ(got, expected);
  }
}

TEST_F(DroppedRunsCuda, DroppedTokensEqualCpuVersion) {
  PartsFixture<bf16> parts({.kv_heads = 2, .head_dim = 5, .page_tokens = 8}, {0, 1, 300, 70}, {0, 1, 60, 20}, 2);
  std::vector<float> expected(static_cast<std::size_t>(parts.total_dropped()) * 10);
  std::vector<std::int32_t> expected_position(static_cast<std::size_t>(parts.total_dropped()));
  const DeviceBuffer<bf16> out(static_cast<std::int64_t>(expected.size()));
  const DeviceBuffer<std::int32_t> position(parts.total_dropped());
  run_cpu(copy_dropped(parts.host(), expected.data(), expected_position.data()));
  run_cuda(copy_dropped(parts.device(), out.data(), position.data()), cuda());
  EXPECT_EQ(floats(out.to_host(cuda().stream())), expected);
  EXPECT_EQ(position.to_host(cuda().stream()), expected_position);
}

}  // namespace
}  // namespace kvlab
