#include "kernels/allocate/count_scores_op.h"
#include "kernels/allocate/pool_numbers_op.h"
#include "kernels/allocate/rank_means/rank_means.h"
#include "kernels/attention/pass_attention/pass_attention.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/projected_norms/projected_norms.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/select/mean_query_op.h"
#include "policies/kv/scorer/chosen_heads/chosen_heads.h"
#include "policies/kv/scorer/chunk_attention/chunk_attention.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

const Ints kLen{0, 1, 2, 33, 1023, 1025, 300, 2000};  // chunks of 1,024
const auto kRows = static_cast<std::int32_t>(kLen.size());

TEST_F(CudaTest, ScoreMapFills) {
  const Longs first = prefix_sums(kLen);
  const Ints begin{0, 0, 1, 5, 0, 20, 300, 7}, end{0, 1, 1, 33, 1023, 1025, 300, 1999};
  for (const bool outside : {false, true})
    EXPECT_TRUE(equal(both(random_elements<float>(first.back(), 3), [&](bool, float* x) {
      return ScoreMap::fill(kRows, first.data(), begin.data(), end.data(), 0.3F, 1e-3F, x, outside);
    })));
}

TEST_F(CudaTest, ScoreMapGathers) {
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

TEST_F(CudaTest, BlockMaxima) {
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
TEST_F(CudaTest, ReduceHeads) {
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
      EXPECT_TRUE(equal(both(scores, [&](bool gpu, float* x) { return ReduceHeads{rows.at(gpu), kind, x, by_position}; })));
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
      const auto mapped = both<float>(first.back(), [&](bool gpu, float* out) {
        return ScoreMap{8, first.data(), kind, x.at(gpu), 0.7F, 0.3F, uses_b, y.at(gpu), uses_b ? factor.data() : nullptr, out};
      });
      EXPECT_TRUE(all_near(mapped, 5e-7, 5e-7, true));
    }
}

TEST_F(BudgetOpsCuda, VarianceEntropyAndTheirPowersEqualCpuVersions) {
  std::vector<float> x = random_elements<float>(first.back(), 5);
  x[3] = kInf, x[4] = std::numeric_limits<float>::quiet_NaN();
  Twice<float> scores(x);
  const auto numbers = [&](PoolNumbers::Kind kind) {
    const auto of = on_host(std::vector<float>(4, -1.0F),
                            [&](bool gpu, float* out) { return PoolNumbers{4, 2, first.data(), scores.at(gpu), out, kind}; });
    EXPECT_TRUE(all_near(of, 0, 1e-6));
    return of.expected;
  };
  numbers(PoolNumbers::Kind::kEntropy);
  Twice<float> variance(numbers(PoolNumbers::Kind::kVariance));
  const Longs all{0, 4};
  const auto preference = on_host(std::vector<float>(4), [&](bool gpu, float* out) {
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

// Means of at most 300 numbers in fp32, in another order.
TEST_F(CudaTest, MeanQuery) {
  using Kind = MeanQuery::Kind;
  for (const auto& [width, kind] : {std::pair{1, Kind::kMean}, {96, Kind::kMean}, {1030, Kind::kMean}, {40, Kind::kProbe}}) {
    const QueriesFixture queries({0, 1, 128, 300}, {0, 4, 200, 500}, 1, width, 1);
    const auto means = both<float>(4LL * width, [&, width = width, kind = kind](bool gpu, float* out) {
      return MeanQuery{4, width, queries.at(gpu), out, kind};
    });
    EXPECT_TRUE(all_near(means, 1e-6, 1e-5));
  }
}

TEST_F(CudaTest, SentenceQuery) {
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
    EXPECT_TRUE(same(mean, sums));
  }
}

// Exponentials differ in their last bits.
TEST_F(CudaTest, TokenScores) {
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
TEST_F(CudaTest, CountScoresOfListedMass) {
  RowsFixture<f16> rows({.kv_heads = 2, .head_dim = 8, .page_tokens = 16, .num_words = 2}, {0, 1, 300, 250}, 11);
  std::mt19937 random(12);
  rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
    rows.words[rows.position.size() + slot] = std::bit_cast<std::uint32_t>(static_cast<float>(random() % 1000) * 0.01F);
  });
  rows.upload();
  const Longs lists{0, 2, 3, 203, 300};
  Ints index(300, -1);
  index[2] = 0;
  std::iota(index.begin() + 3, index.begin() + 203, 3);
  std::iota(index.begin() + 203, index.begin() + 280, 0);
  Twice<std::int32_t> listed(index);
  for (const double share : {0.0, 0.5, 0.975, 1.0}) {
    EXPECT_TRUE(equal(on_host(Ints(4, -1), [&](bool gpu, std::int32_t* out) {
      constexpr auto kMass = CountScores::Kind::kListedMass;
      return CountScores{4, lists.data(), nullptr, kMass, share, out, 1, nullptr, listed.at(gpu), rows.at(gpu), 1};
    })));
  }
}

// The CPU's sums of sorted rows, in its order; rows beyond what a block sorts (8,192 keys).
TEST_F(CudaTest, RankMeans) {
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
    EXPECT_TRUE(same(out));
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
