#include <algorithm>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/allocate/rank_means/rank_means.h"
#include "kernels/attention/pass_attention/pass_attention.h"
#include "kernels/score/projected_norms/projected_norms.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/select/mean_query_op.h"
#include "policies/kv/scorer/chosen_heads/chosen_heads.h"
#include "policies/kv/scorer/chunk_attention/chunk_attention.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class QueryOpsCuda : public CudaTest {};

// Means of at most 300 numbers in fp32, in another order.
TEST_F(QueryOpsCuda, MeanQuery) {
  using Kind = MeanQuery::Kind;
  for (const auto& [width, kind] : {std::pair{1, Kind::kMean}, {96, Kind::kMean}, {1030, Kind::kMean}, {40, Kind::kProbe}}) {
    const QueriesFixture queries({0, 1, 128, 300}, {0, 4, 200, 500}, 1, width, 1);
    const auto means = both<float>(4LL * width, [&, width = width, kind = kind](bool gpu, float* out) {
      return MeanQuery{4, width, queries.at(gpu), out, kind};
    });
    EXPECT_TRUE(all_near(means, 1e-6, 1e-5));
  }
}

TEST_F(QueryOpsCuda, SentenceQuery) {
  constexpr std::int32_t kWidth = 300;
  constexpr auto kSentence = MeanQuery::Kind::kSentence;
  const QueriesFixture queries({1, 1, 2, 1}, {0, 5, 7, 9}, 1, kWidth, 2);
  RowArrays<std::int32_t> sentence_of(Longs(4, 12));
  for (std::size_t s = 0; s < 4; ++s)
    for (std::int32_t i = 0; i < 12; ++i) sentence_of.row(s)[static_cast<std::size_t>(i)] = s == 1 ? i / 5 : s == 2 ? i / 4 : 0;
  sentence_of.upload();
  const Ints fresh{0, 0, 0, 1};
  RowArrays<float> sums(Longs(4, kWidth + 1), 2.5F);
  for (int step = 0; step < 2; ++step) {
    Twice<float> mean(4 * kWidth);
    run_both([&](bool gpu) {
      return MeanQuery{4, kWidth, queries.at(gpu), mean.at(gpu), kSentence, sentence_of.at(gpu), fresh.data(), sums.at(gpu)};
    });
    EXPECT_EQ(mean.device(cuda()), mean.host());
    EXPECT_EQ(sums.device_contents(cuda()), sums.contents());
  }
}

// Exponentials differ in their last bits.
TEST_F(QueryOpsCuda, TokenScores) {
  using Kind = TokenScores::Kind;
  RowsFixture<bf16> rows({.kv_heads = 2, .head_dim = 8, .page_tokens = 16, .num_words = 4}, {0, 1, 300, 250}, 9);
  const Ints end{3, 450};
  const Longs seeds{12345, 678};
  std::mt19937 random(10);
  for (const bool floats : {false, true}) {
    rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
      const std::size_t slots = rows.position.size();
      for (std::size_t w = 1; w < 4; ++w)
        rows.words[w * slots + slot] = floats ? std::bit_cast<std::uint32_t>(static_cast<float>(random() % 1000) * 0.01F)
                                              : (random() % 3 == 0 ? 0U : static_cast<std::uint32_t>(random() % 200));
    });
    rows.upload();
    const std::vector<Kind> kinds = floats ? std::vector<Kind>{Kind::kSum, Kind::kMean, Kind::kSpread}
                                           : std::vector<Kind>{Kind::kPosition,   Kind::kRandom,  Kind::kRingSet, Kind::kRingClear,
                                                               Kind::kRecurrence, Kind::kLastHit, Kind::kHits};
    for (const Kind kind : kinds) {
      const auto scores = both<float>(
          rows.first.back(), [&](bool gpu, float* out) { return TokenScores{rows.at(gpu), kind, 1, 70, end.data(), seeds.data(), out}; });
      EXPECT_TRUE(all_near(scores, 0, kind == Kind::kRecurrence || kind == Kind::kSpread ? 1e-6 : 0)) << static_cast<int>(kind);
    }
  }
}

// Sums of these masses are exact, so that the device, which does not sort, counts the same.
TEST_F(QueryOpsCuda, CountScoresOfListedMass) {
  RowsFixture<f16> rows({.kv_heads = 2, .head_dim = 8, .page_tokens = 16, .num_words = 2}, {0, 1, 300, 250}, 11);
  std::mt19937 random(12);
  rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
    rows.words[rows.position.size() + slot] = std::bit_cast<std::uint32_t>(static_cast<float>(random() % 1000) * 0.01F);
  });
  rows.upload();
  const Longs lists{0, 2, 3, 203, 300};
  Ints index(300, -1);
  for (std::int64_t i = 2; i < 3; ++i) index[static_cast<std::size_t>(i)] = 0;
  for (std::int64_t i = 3; i < 203; ++i) index[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
  for (std::int64_t i = 203; i < 280; ++i) index[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i - 203);
  Twice<std::int32_t> listed(index);
  for (const double share : {0.0, 0.5, 0.975, 1.0}) {
    Ints counts[2] = {Ints(4, -1), Ints(4, -1)};
    run_both([&](bool gpu) {
      constexpr auto kMass = CountScores::Kind::kListedMass;
      return CountScores{4, lists.data(), nullptr, kMass, share, counts[gpu].data(), 1, nullptr, listed.at(gpu), rows.at(gpu), 1};
    });
    EXPECT_EQ(counts[1], counts[0]);
  }
}

// The CPU's sums of sorted rows, in its order; rows beyond what a block sorts (8,192 keys).
TEST_F(QueryOpsCuda, RankMeans) {
  for (const bool long_rows : {false, true}) {
    const Ints len = long_rows ? Ints{9000, 20000} : Ints{0, 3, 1, 2, 700, 513};
    const Longs first = prefix_sums(len);
    const std::int32_t per_pool = 2;
    Ints shortest;
    for (std::size_t p = 0; p < len.size() / 2; ++p) shortest.push_back(std::min(len[2 * p], len[2 * p + 1]));
    const Longs out_first = prefix_sums(shortest);
    const auto pools = static_cast<std::int32_t>(shortest.size());
    Twice<float> scores = normals(first.back(), 13), out(out_first.back());
    run_both([&](bool gpu) { return RankMeans{pools, per_pool, first.data(), scores.at(gpu), out_first.data(), out.at(gpu)}; });
    EXPECT_EQ(out.device(cuda()), out.host());
  }
}

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
