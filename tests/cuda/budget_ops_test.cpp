#include "kernels/allocate/pool_numbers_op.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/score/score_map_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Operations that find shares of the cache. Sums in another order than the CPU's have a tolerance; everything else is equal.
class BudgetOpsCuda : public CudaTest {
 protected:
  const Ints len{0, 0, 1, 1, 700, 700, 64, 64};
  const Longs first = prefix_sums(len);
};

TEST_F(BudgetOpsCuda, ScoreMapEqualsCpuVersion) {
  std::vector<float> a = random_elements<float>(first.back(), 2), b = random_elements<float>(first.back(), 3);
  a[5] = kInf, a[6] = -kInf, b[7] = 0.0F;
  Twice<float> x(a), y(b);
  const std::vector<float> factor = random_elements<float>(8, 4);
  for (const auto kind : {ScoreMap::Kind::kPlus, ScoreMap::Kind::kTimes, ScoreMap::Kind::kOver})
    for (const bool uses_b : {false, true}) {
      const auto [got, expected] = both<float>(first.back(), [&](bool gpu, float* out) {
        return ScoreMap{8, first.data(), kind, x.at(gpu), 0.7F, 0.3F, uses_b, y.at(gpu), uses_b ? factor.data() : nullptr, out};
      });
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i] == expected[i] || std::abs(got[i] - expected[i]) <= 1e-6F * std::max(std::abs(expected[i]), 1.0F)) << i;
    }
}

TEST_F(BudgetOpsCuda, VarianceEntropyAndTheirPowersEqualCpuVersions) {
  std::vector<float> x = random_elements<float>(first.back(), 5);
  x[3] = kInf, x[4] = std::numeric_limits<float>::quiet_NaN();
  Twice<float> scores(x);
  std::vector<float> of[2] = {std::vector<float>(4, -1.0F), std::vector<float>(4, -1.0F)};
  for (const auto kind : {PoolNumbers::Kind::kEntropy, PoolNumbers::Kind::kVariance}) {
    run_both([&](bool gpu) { return PoolNumbers{4, 2, first.data(), scores.at(gpu), of[gpu].data(), kind}; });
    EXPECT_TRUE(all_near(of[1], of[0], 0, 1e-6));
  }
  Twice<float> variance(of[0]);
  const Longs all{0, 4};
  const auto preference = both<float>(4, [&](bool gpu, float* out) {
    ScoreMap map{.num_rows = 1, .first = all.data(), .kind = ScoreMap::Kind::kPowers, .a_power = 0.5, .b_power = 1 / 3.0};
    map.a = map.b = variance.at(gpu), map.out = out;
    return map;
  });
  EXPECT_TRUE(all_near(preference, 0, 1e-6));
}

TEST_F(BudgetOpsCuda, MassesEqualCpuVersion) {
  Twice<float> scores = normals(first.back(), 6);
  const Ints head{0, 0, 1, 0, 300, 4, 10, 64}, tail{0, 0, 0, 0, 200, 600, 60, 0}, end{0, 0, 1, 1, 700, 700, 64, 60};
  const auto masses = both<float>(4, [&](bool gpu, float* out) {
    return PoolNumbers{4, 2, first.data(), scores.at(gpu), out, PoolNumbers::Kind::kMass, head.data(), tail.data(), end.data(), -1.5F};
  });
  EXPECT_TRUE(all_near(masses, 1e-6, 1e-6));
}

TEST_F(BudgetOpsCuda, MarkTopOfSpansEqualsCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 2, .head_dim = 4, .page_tokens = 8}, len, 7);
  const Longs spans{0, 1, 3, 7, 9}, quota_first{0, 1, 2, 4, 6, 10, 14, 16, 18};
  const Ints begin{0, 0, 1, 0, 100, 101, 600, 0, 30}, quota{2, 3, 1, 0, 0, 5, 9, 0, 44, 3, 500, 2, 7, 8, 20, 1, 0, 90};
  std::vector<float> scores = random_elements<float>(first.back(), 8);
  for (float& x : scores) x = std::round(x * 4) / 4;  // many ties
  for (const float value : {kInf, 0.5F})
    EXPECT_TRUE(equal(both(scores, [&](bool gpu, float* x) {
      return MarkTop{
          8, first.data(), x, quota.data(), x, value, false, nullptr, true, quota_first.data(), rows.at(gpu), spans.data(), begin.data()};
    })));
}

}  // namespace
}  // namespace kvlab
