#include "kernels/score/token_norms_op.h"
#include "kernels/select/column_basis/column_basis.h"
#include "kernels/select/query_gram_op.h"
#include "policies/kv/scorer/representatives_op.h"
#include "policies/kv/selector/key_codes/key_codes.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class SparseScoresCuda : public CudaTest {};

TEST_F(SparseScoresCuda, QueryBasisEqualsCpuVersions) {
  const std::int32_t kv_heads = 2, group = 2, d = 13, width = 4, n = 6;
  const QueriesFixture queries({9, 12, 5}, {50, 60, 70}, kv_heads * group, d, 8);
  const Ints fresh{0, 1, 2}, chosen{1, 1, 0};
  RowArrays<float> sum(Longs(n, d), 0.5F), gram(Longs(n, d * d), 0.0F), basis(Longs(n, width * d), -1.0F);
  run_both([&](bool gpu) { return QueryGram{n, kv_heads, group, d, queries.at(gpu), fresh.data(), true, sum.at(gpu), gram.at(gpu)}; });
  EXPECT_TRUE(all_near(sum.device_contents(cuda()), sum.contents(), 1e-5, 1e-5));
  EXPECT_TRUE(all_near(gram.device_contents(cuda()), gram.contents(), 1e-5, 1e-5));
  sum.upload(), gram.upload();
  RowsFixture<f16> rows({.kv_heads = kv_heads, .head_dim = d, .page_tokens = 8}, {0, 3, 40, 9, 1, 1}, 9);
  const Ints from{0, 1, 0, 9, 1, 1};
  RowArrays<float> partial({0, 3 * width, 40 * width, 9 * width, width, width});
  for (const bool skew : {false, true}) {
    run_both([&](bool gpu) { return ColumnBasis{n, kv_heads, d, width, chosen.data(), skew, sum.at(gpu), gram.at(gpu), basis.at(gpu)}; });
    const std::vector<float> got = basis.device_contents(cuda()), expected = basis.contents();
    for (std::size_t line = 0; line < n * width; ++line) {  // of either sign: eigenvectors have none
      double product = 0, length = 0;
      for (std::size_t c = line * d; c < (line + 1) * d; ++c)
        product += double{got[c]} * double{expected[c]}, length += double{got[c]} * double{got[c]};
      EXPECT_NEAR(std::abs(product), line < 4 * width ? 1.0 : d, 1e-5) << line;
      EXPECT_NEAR(length, line < 4 * width ? 1.0 : d, 1e-5) << line;
    }
    basis.upload();
    run_both([&](bool gpu) {
      TokenNorms project{.kv = rows.at(gpu), .kind = TokenNorms::Kind::kProject, .width = width, .from = from.data()};
      project.basis = basis.at(gpu), project.partial = partial.at(gpu);
      return project;
    });
    EXPECT_TRUE(all_near(partial.device_contents(cuda()), partial.contents(), 1e-5, 1e-5));
  }
}

TEST_F(SparseScoresCuda, RepresentativesEqualCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 3, .head_dim = 4, .page_tokens = 8}, {1, 1, 1, 300, 300, 300, 50, 50, 50}, 10);
  const Ints important{1, 60, 10}, others{0, 25, 40};
  std::vector<float> scores = random_elements<float>(1053, 11);
  for (float& x : scores) x = std::round(x * 8) / 8;
  for (const std::size_t i : {5U, 305U, 605U}) scores[i] = kInf;
  using Anchor = Representatives::Anchor;
  for (const auto anchor : {Anchor::kMajority, Anchor::kZeros, Anchor::kOnes, Anchor::kAlternating, Anchor::kRandom})
    EXPECT_TRUE(equal(both(
        scores, [&](bool gpu, float* out) { return Representatives{rows.at(gpu), important.data(), others.data(), anchor, 7, out}; })));
}

TEST_F(SparseScoresCuda, KeyCodesEqualCpuVersions) {
  const std::int32_t d = 16;
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = d, .page_tokens = 8}, {5, 60, 90, 40}, 4);
  const std::vector<float> turns = random_elements<float>(2 * d / 2, 9);
  for (const float* const frequencies : {static_cast<const float*>(nullptr), turns.data()}) {
    const Ints codes{0, 7, 40, 1};
    const Longs seeds{1, 2, 3, 4};
    RowArrays<float> gram(Longs(4, d * d)), root(Longs(4, d * d)), centers({0, 7 * d, 40 * d, d});
    for (std::size_t r = 0; r < 4; ++r) {
      const std::vector<float> q = random_elements<float>(30 * d, 60 + r);
      for (std::size_t i = 0; i < d * d; ++i)
        for (std::size_t t = 0; t < 30; ++t) gram.row(r)[i] += q[t * d + i / d] * q[t * d + i % d];
    }
    gram.upload();
    run_both([&](bool gpu) {
      return KeyCodes{rows.at(gpu), KeyCodes::Kind::kTrain, frequencies, codes.data(), root.at(gpu), centers.at(gpu), 3, seeds.data(),
                      gram.at(gpu)};
    });
    EXPECT_TRUE(all_near(root.device_contents(cuda()), root.contents(), 1e-6, 1e-5));
    EXPECT_TRUE(all_near(centers.device_contents(cuda()), centers.contents(), 1e-5, 1e-5));  // means of keys

    root.upload(), centers.upload();
    const Ints from{0, 10, 0, 39}, to{0, 60, 90, 40};
    RowArrays<std::int32_t> code({0, 60, 90, 40});
    run_both([&](bool gpu) {
      KeyCodes assign{
          .kv = rows.at(gpu), .frequencies = frequencies, .codes = codes.data(), .root = root.at(gpu), .centers = centers.at(gpu)};
      assign.from = from.data(), assign.to = to.data(), assign.code = code.at(gpu);
      return assign;
    });
    EXPECT_EQ(code.device_contents(cuda()), code.contents());
  }
}

}  // namespace
}  // namespace kvlab
