#include "kernels/allocate/pool_numbers_op.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Operations that change scores of ragged rows in place: op(gpu, scores).
class ScoreOpsCuda : public CudaTest {
 protected:
  template <class Op>
  void check(const std::vector<float>& scores, double tolerance, const Op& op) {
    const auto [got, expected] = both(scores, op);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i])) ||
                  std::abs(got[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i])))
          << "element " << i << " is " << got[i] << ", expected " << expected[i];
  }
};

const Ints kLen{0, 1, 2, 33, 1023, 1025, 300, 2000};  // chunks of 1,024
const auto kRows = static_cast<std::int32_t>(kLen.size());

TEST_F(ScoreOpsCuda, ScoreMapFills) {
  const Longs first = prefix_sums(kLen);
  const Ints begin{0, 0, 1, 5, 0, 20, 300, 7}, end{0, 1, 1, 33, 1023, 1025, 300, 1999};
  for (const bool outside : {false, true})
    check(random_elements<float>(first.back(), 3), 0,
          [&](bool, float* x) { return ScoreMap::fill(kRows, first.data(), begin.data(), end.data(), 0.3F, 1e-3F, x, outside); });
}

TEST_F(ScoreOpsCuda, ScoreMapGathers) {
  const Longs first = prefix_sums(kLen);
  Ints kept, listed;
  for (const std::int32_t n : kLen) {
    const std::size_t before = listed.size();
    for (std::int32_t i = n / 5; i < n; i += 1 + i % 3) listed.push_back(i);
    kept.push_back(static_cast<std::int32_t>(listed.size() - before));
  }
  const Longs index_first = prefix_sums(kept);
  Twice<float> scores = normals(first.back(), 4);
  Twice<std::int32_t> index(listed);
  EXPECT_TRUE(equal(both<float>(index_first.back(), [&](bool gpu, float* out) {
    ScoreMap gather{kRows, index_first.data(), ScoreMap::Kind::kGather, scores.at(gpu)};
    gather.start = first.data(), gather.index = index.at(gpu), gather.out = out;
    return gather;
  })));
}

TEST_F(ScoreOpsCuda, BlockMaxima) {
  const Longs in_first = prefix_sums(kLen);
  Twice<float> in = normals(in_first.back(), 5);
  Ints blocks;
  for (const std::int32_t n : kLen) blocks.push_back((n + 4) / 4 + 1);  // the last ones have nothing to look at
  const Longs first = prefix_sums(blocks);
  EXPECT_TRUE(equal(both<float>(first.back(), [&](bool gpu, float* out) {
    return Pool1d{kRows, first.data(), nullptr, nullptr, out, 6, Pool1d::Kind::kBlockMax, false, 1, 4, 1, in_first.data(), in.at(gpu)};
  })));
}

// Heads that hold the same tokens, and heads that do not. The sums are in the CPU's order.
TEST_F(ScoreOpsCuda, ReduceHeads) {
  RowsFixture<f16> rows({.kv_heads = 4, .head_dim = 8, .page_tokens = 16}, {700, 650, 0, 1030, 90, 90, 90, 90}, 9);
  const KvRows kv = rows.host();
  for (std::int32_t i = 0; i < 90; ++i)
    for (std::int32_t r = 5; r < 8; ++r)
      rows.position[static_cast<std::size_t>(kv.slot(r, i))] = rows.position[static_cast<std::size_t>(kv.slot(4, i))];
  rows.upload();
  std::vector<float> scores = random_elements<float>(rows.first.back(), 10);
  for (float& x : scores) x = std::abs(x);
  for (const auto kind : {ReduceHeads::Kind::kSum, ReduceHeads::Kind::kMean, ReduceHeads::Kind::kRootOfSum})
    for (const bool by_position : {true, false})
      check(scores, 0, [&](bool gpu, float* x) { return ReduceHeads{rows.at(gpu), kind, x, by_position}; });
}

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
  std::vector<float> preference[2] = {std::vector<float>(4), std::vector<float>(4)};
  run_both([&](bool gpu) {
    ScoreMap map{.num_rows = 1, .first = all.data(), .kind = ScoreMap::Kind::kPowers, .a_power = 0.5, .b_power = 1 / 3.0};
    map.a = map.b = variance.at(gpu), map.out = preference[gpu].data();
    return map;
  });
  EXPECT_TRUE(all_near(preference[1], preference[0], 0, 1e-6));
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
