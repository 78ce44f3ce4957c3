#include "kernels/attention/pass_attention/pass_attention.h"
#include "kernels/score/projected_norms/projected_norms.h"
#include "policies/kv/scorer/chosen_heads/chosen_heads.h"
#include "policies/kv/scorer/chunk_attention/chunk_attention.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Probabilities of logits that are sums of 20 products in fp32, in another order than the CPU's.
class QueryLinesCuda : public CudaTest {
 protected:
  template <class T, class Op>
  void check(RowsFixture<T>& rows, const Op& op) {
    EXPECT_TRUE(all_near(both<float>(rows.first.back(), op), 1e-5, 1e-4));
  }
};

TEST_F(QueryLinesCuda, ChosenHeadsEqualCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 20, .page_tokens = 8}, {0, 0, 70, 70, 33, 33}, 1);
  const QueriesFixture queries({1, 5, 3}, {0, 60, 500}, 4, 20, 2);
  const Ints heads{3, 0, 2};
  for (const bool finds : {false, true})
    check(rows, [&](bool gpu, float* out) {
      return ChosenHeads{rows.at(gpu), queries.at(gpu), finds ? nullptr : heads.data(), 3, finds, 4, 8, out};
    });
}

TEST_F(QueryLinesCuda, ChunkAttentionEqualsCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 20, .page_tokens = 8, .num_words = 2}, {5, 5, 70, 70, 33, 40}, 5);
  const QueriesFixture queries({0, 50, 1}, {5, 60, 500}, 4, 20, 6);
  for (const bool flag : {false, true}) {
    run_both([&](bool gpu) { return ChunkAttention{rows.at(gpu), queries.at(gpu), 16, flag, flag, 1}; });
    const std::vector<std::uint32_t> got = rows.device_words(cuda());
    const std::size_t slots = rows.position.size();
    rows.for_each_token([&](std::int32_t r, std::int32_t i, std::size_t slot) {
      EXPECT_NEAR(std::bit_cast<float>(got[slots + slot]), std::bit_cast<float>(rows.words[slots + slot]), 1e-4) << r << " " << i;
    });
  }
}

TEST_F(QueryLinesCuda, ProjectedNormsEqualCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 20, .page_tokens = 8}, {0, 1, 9, 30}, 7);
  Twice<float> w_o = normals(300 * 80, 8);
  for (const auto kind : {ProjectedNorms::Kind::kL1, ProjectedNorms::Kind::kL2})
    check(rows, [&](bool gpu, float* out) { return ProjectedNorms{rows.at(gpu), w_o.at(gpu), 300, kind, out}; });
}

TEST_F(QueryLinesCuda, PassAttentionEqualsCpuVersion) {
  const std::int32_t hidden_dim = 30;
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 20, .page_tokens = 8}, {0, 3, 60, 45}, 9);
  const QueriesFixture queries({2, 5, 7}, {800, 900, 901}, 4, 20, 10);
  Twice<float> keys = normals(7 * 2 * 20, 11), hidden = normals(7 * hidden_dim, 12, 5.0F), w_o = normals(hidden_dim * 80, 13);
  Twice<float> gradient(std::vector<float>{3, 0.5F, 2, 7, 1, 0.25F, 4});
  using Norms = PassAttention::Norms;
  std::vector<PassQueries> one[2], other[2];
  std::vector<std::span<const PassQueries>> pass[2];
  for (const bool gpu : {false, true}) {
    const Queries* q = queries.at(gpu);
    const float *k = keys.at(gpu), *h = hidden.at(gpu), *g = gradient.at(gpu);
    one[gpu] = {{q[0], k, 0, 9, h, g}}, other[gpu] = {{q[1], k, 0, 40, h, g}, {q[2], k, 30, 70, h, g}};
    pass[gpu] = {one[gpu], other[gpu]};
  }
  for (const Norms norms : {Norms::kNone, Norms::kHidden, Norms::kGradient})
    check(rows, [&](bool gpu, float* out) {
      const bool sums = norms == Norms::kHidden;
      const auto reduce = sums ? PassAttention::Reduce::kSum : PassAttention::Reduce::kMax;
      const auto group = sums ? PassAttention::Group::kMean : PassAttention::Group::kMax;
      return PassAttention{rows.at(gpu), pass[gpu], 4, reduce, group, norms, w_o.at(gpu), hidden_dim, out};
    });
}

}  // namespace
}  // namespace kvlab
