#include "kernels/score/token_norms_op.h"
#include "kernels/select/column_basis/column_basis.h"
#include "kernels/select/query_gram_op.h"
#include "policies/kv/scorer/representatives_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class SparseScoresCuda : public CudaTest {};

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
        product += double{got[c]} * double{expected[c]}, length += double{got[c]} * double{got[c]};
      EXPECT_NEAR(std::abs(product), line < 4 * width ? 1.0 : d, 1e-5) << line;
      EXPECT_NEAR(length, line < 4 * width ? 1.0 : d, 1e-5) << line;
    }
    basis.upload();
    TokenNorms project{.kv = rows.host(), .kind = TokenNorms::Kind::kProject, .width = width, .from = from.data()};
    project.basis = basis.host(), project.partial = partial.host();
    run_cpu(project);
    project.kv = rows.device(), project.basis = basis.device(), project.partial = partial.device();
    run_cuda(project, cuda());
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
