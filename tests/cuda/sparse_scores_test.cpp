#include "kernels/select/query_basis/query_basis.h"
#include "policies/kv/scorer/representatives_op.h"
#include "policies/kv/selector/chunk_outliers/chunk_outliers.h"
#include "policies/kv/selector/halving_search/halving_search.h"
#include "policies/kv/selector/sparq/sparq.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class SparseScoresCuda : public CudaTest {};

TEST_F(SparseScoresCuda, SparqEqualsCpuVersions) {
  const std::int32_t group = 2, d = 24;
  RowsFixture<f16> rows({.kv_heads = 2, .group = group, .head_dim = d, .page_tokens = 8}, {0, 1, 70, 300}, 1);
  const QueriesFixture queries({1, 2}, {5, 60}, 2 * group, d, 2);
  const std::size_t total = 371;
  const auto scores = [&](const KvRows& kv, const Queries* q, float* each, float* mean) { return SparqScores{kv, 7, q, each, mean}; };
  std::vector<float> each(total * 2), mean(total);
  run_cpu(scores(rows.host(), queries.host(), each.data(), mean.data()));
  const DeviceBuffer<float> device_each(total * 2), device_mean(total);
  run_cuda(scores(rows.device(), queries.device(), device_each.data(), device_mean.data()), cuda());
  EXPECT_TRUE(all_near(device_each.to_host(cuda().stream()), each, 1e-6, 1e-5));  // sums of 7 products in fp32
  EXPECT_TRUE(all_near(device_mean.to_host(cuda().stream()), mean, 1e-6, 1e-5));

  RowArrays<float> sum({d, d, d, d}, 0.5F);
  const Ints from{0, 1, 30, 0};
  run_cpu(ValueSums{rows.host(), from.data(), sum.host()});
  run_cuda(ValueSums{rows.device(), from.data(), sum.device()}, cuda());
  EXPECT_EQ(sum.device_contents(cuda()), sum.contents());

  const Longs first{0, 0, 1, 21, 121};
  Ints listed{0};
  for (std::int32_t i = 0; i < 20; ++i) listed.push_back(3 * i);
  for (std::int32_t i = 0; i < 100; ++i) listed.push_back(3 * i);
  const DeviceBuffer<std::int32_t> device_listed(listed);
  std::vector<float> k(4 * d, -1.0F), v(4 * d, -1.0F), weight(8);
  Ints position(4, -1);
  run_cpu(SparqRest{rows.host(),
                    queries.host(),
                    {first.data(), listed.data()},
                    each.data(),
                    sum.host(),
                    k.data(),
                    v.data(),
                    position.data(),
                    weight.data()});
  const DeviceBuffer<float> device_each_again(each), device_k(4 * d), device_v(4 * d), device_weight(8);
  const DeviceBuffer<std::int32_t> device_position(4);
  run_cuda(SparqRest{rows.device(),
                     queries.device(),
                     {first.data(), device_listed.data()},
                     device_each_again.data(),
                     sum.device(),
                     device_k.data(),
                     device_v.data(),
                     device_position.data(),
                     device_weight.data()},
           cuda());
  EXPECT_EQ(device_k.to_host(cuda().stream()), k);
  EXPECT_EQ(device_v.to_host(cuda().stream()), v);
  EXPECT_EQ(device_position.to_host(cuda().stream()), position);
  const std::vector<float> got = device_weight.to_host(cuda().stream());
  for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(got[i] == weight[i] || std::abs(got[i] - weight[i]) < 1e-4F) << i;

  Ints count(4, -1), counted(4, -1);
  run_cpu(FlashPages{4, 8, {first.data(), listed.data()}, count.data()});
  run_cuda(FlashPages{4, 8, {first.data(), device_listed.data()}, counted.data()}, cuda());
  EXPECT_EQ(counted, count);
}

TEST_F(SparseScoresCuda, HalvingSearchEqualsCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 20, .page_tokens = 8}, {0, 40, 300, 900}, 5);
  const QueriesFixture queries({1, 2}, {5, 60}, 4, 20, 6);
  const Ints base{0, 2, 4, 4}, blocks{0, 9, 70, 220}, keep{0, 9, 5, 33};
  const Longs first{0, 0, 9, 14, 47};
  Ints expected(47);
  run_cpu(HalvingSearch{rows.host(), queries.host(), 4, base.data(), blocks.data(), keep.data(), first.data(), expected.data()});
  const auto got = same_in_every_order([&] {
    const DeviceBuffer<std::int32_t> out(47);
    run_cuda(HalvingSearch{rows.device(), queries.device(), 4, base.data(), blocks.data(), keep.data(), first.data(), out.data()}, cuda());
    return out.to_host(cuda().stream());
  });
  EXPECT_EQ(got, expected);
}

TEST_F(SparseScoresCuda, ChunkOutliersEqualCpuVersion) {
  RowsFixture<f16> rows({.head_dim = 20, .page_tokens = 8}, {0, 9, 40, 300}, 7);
  const Ints chosen{1, 1, 0, 1}, chunks{0, 2, 10, 75}, outliers{0, 1, 3, 20};
  RowArrays<float> means({0, 2 * 20, 10 * 20, 75 * 20});
  for (std::size_t r = 0; r < 4; ++r) means.row(r) = random_elements<float>(chunks[r] * 20, 70 + r);
  means.upload();
  RowArrays<std::int32_t> outlier({0, 1, 3, 20}), other({0, 1, 7, 55});
  run_cpu(ChunkOutliers{rows.host(), 4, chosen.data(), chunks.data(), outliers.data(), means.host(), outlier.host(), other.host()});
  run_cuda(ChunkOutliers{rows.device(), 4, chosen.data(), chunks.data(), outliers.data(), means.device(), outlier.device(), other.device()},
           cuda());
  EXPECT_EQ(outlier.device_contents(cuda()), outlier.contents());
  EXPECT_EQ(other.device_contents(cuda()), other.contents());
}

TEST_F(SparseScoresCuda, QueryBasisEqualsCpuVersions) {
  const std::int32_t kv_heads = 2, group = 2, d = 13, width = 4, n = 6;
  const QueriesFixture queries({9, 12, 5}, {50, 60, 70}, kv_heads * group, d, 8);
  const Ints fresh{0, 1, 2}, chosen{1, 1, 0};
  RowArrays<float> sum(Longs(n, d), 0.5F), gram(Longs(n, d * d), 0.0F), basis(Longs(n, width * d), -1.0F);
  run_cpu(QueryGram{n, kv_heads, group, d, queries.host(), fresh.data(), true, sum.host(), gram.host()});
  run_cuda(QueryGram{n, kv_heads, group, d, queries.device(), fresh.data(), true, sum.device(), gram.device()}, cuda());
  EXPECT_TRUE(all_near(sum.device_contents(cuda()), sum.contents(), 1e-5, 1e-5));
  EXPECT_TRUE(all_near(gram.device_contents(cuda()), gram.contents(), 1e-5, 1e-5));
  sum.upload(), gram.upload();
  RowsFixture<f16> rows({.kv_heads = kv_heads, .head_dim = d, .page_tokens = 8}, {0, 3, 40, 9, 1, 1}, 9);
  const Ints from{0, 1, 0, 9, 1, 1};
  RowArrays<float> partial({0, 3 * width, 40 * width, 9 * width, width, width});
  for (const bool skew : {false, true}) {
    run_cpu(ColumnBasis{n, kv_heads, d, width, chosen.data(), skew, sum.host(), gram.host(), basis.host()});
    run_cuda(ColumnBasis{n, kv_heads, d, width, chosen.data(), skew, sum.device(), gram.device(), basis.device()}, cuda());
    const std::vector<float> got = basis.device_contents(cuda()), expected = basis.contents();
    for (std::size_t line = 0; line < n * width; ++line) {  // of either sign: eigenvectors have none
      double product = 0, length = 0;
      for (std::size_t c = line * d; c < (line + 1) * d; ++c)
        product += static_cast<double>(got[c]) * static_cast<double>(expected[c]),
            length += static_cast<double>(got[c]) * static_cast<double>(got[c]);
      EXPECT_NEAR(std::abs(product), line < 4 * width ? 1.0 : d, 1e-5) << line;
      EXPECT_NEAR(length, line < 4 * width ? 1.0 : d, 1e-5) << line;
    }
    basis.upload();
    run_cpu(ProjectKeys{rows.host(), width, !skew, from.data(), basis.host(), partial.host()});
    run_cuda(ProjectKeys{rows.device(), width, !skew, from.data(), basis.device(), partial.device()}, cuda());
    EXPECT_TRUE(all_near(partial.device_contents(cuda()), partial.contents(), 1e-5, 1e-5));
  }
}

TEST_F(SparseScoresCuda, RepresentativesEqualCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 3, .head_dim = 4, .page_tokens = 8}, {1, 1, 1, 300, 300, 300, 50, 50, 50}, 10);
  const Ints important{1, 60, 10}, others{0, 25, 40};
  std::vector<float> scores = random_elements<float>(1053, 11);
  for (float& x : scores) x = std::round(x * 8) / 8;
  for (const std::size_t i : {5U, 305U, 605U}) scores[i] = kInf;
  for (const auto anchor : {Representatives::Anchor::kMajority, Representatives::Anchor::kZeros, Representatives::Anchor::kOnes,
                            Representatives::Anchor::kAlternating, Representatives::Anchor::kRandom}) {
    std::vector<float> expected = scores;
    run_cpu(Representatives{rows.host(), important.data(), others.data(), anchor, 7, expected.data()});
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<float> out(scores);
      run_cuda(Representatives{rows.device(), important.data(), others.data(), anchor, 7, out.data()}, cuda());
      return out.to_host(cuda().stream());
    });
    EXPECT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace kvlab
