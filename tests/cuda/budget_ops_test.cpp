#include "kernels/allocate/pool_numbers_op.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/score/score_map_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Scores with many ties.
std::vector<float> coarse(std::int64_t n, std::uint64_t seed) {
  std::vector<float> x = random_elements<float>(n, seed);
  for (float& y : x) y = std::round(y * 4) / 4;
  return x;
}

// Operations that find shares of the cache. Sums in another order than the CPU's have a tolerance; everything else is equal.
class BudgetOpsCuda : public CudaTest {
 protected:
  const Ints len{0, 0, 1, 1, 700, 700, 64, 64};
  const Longs first = prefix_sums(len);
};

TEST_F(BudgetOpsCuda, ScoreMapEqualsCpuVersion) {
  std::vector<float> x = random_elements<float>(first.back(), 2), y = random_elements<float>(first.back(), 3);
  x[5] = kInf, x[6] = -kInf, y[7] = 0.0F;
  const std::vector<float> factor = random_elements<float>(8, 4);
  const DeviceBuffer<float> device_x(x), device_y(y), out(first.back());
  for (const auto kind : {ScoreMap::Kind::kPlus, ScoreMap::Kind::kTimes, ScoreMap::Kind::kOver}) {
    for (const bool uses_b : {false, true}) {
      std::vector<float> expected(x.size());
      ScoreMap map{8, first.data(), kind, x.data(), 0.7F, 0.3F, uses_b, y.data(), uses_b ? factor.data() : nullptr, expected.data()};
      run_cpu(map);
      map.a = device_x.data(), map.b = device_y.data(), map.out = out.data();
      run_cuda(map, cuda());
      const std::vector<float> got = out.to_host(cuda().stream());
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i] == expected[i] || std::abs(got[i] - expected[i]) <= 1e-6F * std::max(std::abs(expected[i]), 1.0F)) << i;
    }
  }
}

TEST_F(BudgetOpsCuda, VarianceEntropyAndTheirPowersEqualCpuVersions) {
  std::vector<float> scores = random_elements<float>(first.back(), 5);
  scores[3] = kInf, scores[4] = std::numeric_limits<float>::quiet_NaN();
  const DeviceBuffer<float> device_scores(scores);
  std::vector<float> expected(4, -1.0F), got(4, -1.0F);
  for (const auto kind : {PoolNumbers::Kind::kEntropy, PoolNumbers::Kind::kVariance}) {
    run_cpu(PoolNumbers{4, 2, first.data(), scores.data(), expected.data(), kind});
    run_cuda(PoolNumbers{4, 2, first.data(), device_scores.data(), got.data(), kind}, cuda());
    EXPECT_TRUE(all_near(got, expected, 0, 1e-6));
  }
  const DeviceBuffer<float> device_variance(expected);
  std::vector<float> preference(4), on_gpu(4);
  const Longs all{0, 4};
  ScoreMap map{.num_rows = 1, .first = all.data(), .kind = ScoreMap::Kind::kPowers, .a_power = 0.5, .b_power = 1 / 3.0};
  map.a = map.b = expected.data(), map.out = preference.data();
  run_cpu(map);
  map.a = map.b = device_variance.data(), map.out = on_gpu.data();
  run_cuda(map, cuda());
  EXPECT_TRUE(all_near(on_gpu, preference, 0, 1e-6));
}

TEST_F(BudgetOpsCuda, MassesEqualCpuVersion) {
  const std::vector<float> scores = random_elements<float>(first.back(), 6);
  const Ints head_end{0, 0, 1, 0, 300, 4, 10, 64}, tail_begin{0, 0, 0, 0, 200, 600, 60, 0}, tail_end{0, 0, 1, 1, 700, 700, 64, 60};
  std::vector<float> expected(4);
  const DeviceBuffer<float> device_scores(scores), mass(4);
  const auto [head, tail, end] = std::array{head_end.data(), tail_begin.data(), tail_end.data()};
  run_cpu(PoolNumbers{4, 2, first.data(), scores.data(), expected.data(), PoolNumbers::Kind::kMass, head, tail, end, -1.5F});
  run_cuda(PoolNumbers{4, 2, first.data(), device_scores.data(), mass.data(), PoolNumbers::Kind::kMass, head, tail, end, -1.5F}, cuda());
  EXPECT_TRUE(all_near(mass.to_host(cuda().stream()), expected, 1e-6, 1e-6));
}

TEST_F(BudgetOpsCuda, MarkTopOfSpansEqualsCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 2, .head_dim = 4, .page_tokens = 8}, len, 7);
  const Longs spans{0, 1, 3, 7, 9}, quota_first{0, 1, 2, 4, 6, 10, 14, 16, 18};
  const Ints begin{0, 0, 1, 0, 100, 101, 600, 0, 30}, quota{2, 3, 1, 0, 0, 5, 9, 0, 44, 3, 500, 2, 7, 8, 20, 1, 0, 90};
  const std::vector<float> scores = coarse(first.back(), 8);
  for (const float value : {kInf, 0.5F}) {
    std::vector<float> expected = scores;
    const auto best = [&](const KvRows& kv, float* x) {
      return MarkTop{8, first.data(), x, quota.data(), x, value, false, nullptr, true, quota_first.data(), kv, spans.data(), begin.data()};
    };
    run_cpu(best(rows.host(), expected.data()));
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<float> out(scores);
      run_cuda(best(rows.device(), out.data()), cuda());
      return out.to_host(cuda().stream());
    });
    EXPECT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace kvlab
