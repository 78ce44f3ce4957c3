#include "kernels/attention/attention_stats/attention_stats.h"

#include "kernels/attention/query_moments/query_moments.h"
#include "kernels/attention/window_moments/window_moments.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/format/probe_sums.h"
#include "policies/kv/scorer/expected_attention/expected_attention.h"
#include "policies/kv/scorer/lag_scores_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

struct Wanted {
  AttentionStats::Group group = AttentionStats::Group::kMean;
  bool sum = true, sum_sq = false, max = false, weigh = false;
};

class AttentionStatsCuda : public CudaTest {
 protected:
  template <class T>
  void check(const RowsShape& shape, const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& counts,
             const Wanted& wanted, std::uint64_t seed, double tolerance) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << ", group " << shape.group << " of " << shape.head_dim << ", reduced by "
                                    << static_cast<int>(wanted.group) << (wanted.weigh ? ", weighed" : ""));
    RowsFixture<T> rows(shape, lengths, seed);
    std::vector<std::int32_t> last;  // some queries do not see the last tokens, those of the first sequence's first row
    for (std::size_t s = 0; s < counts.size(); ++s)
      last.push_back(lengths[s * static_cast<std::size_t>(shape.kv_heads)] * (s % 2 == 0 ? 1 : 3) - (s % 2 == 0 ? 2 : 0));
    const QueriesFixture queries(counts, last, shape.kv_heads * shape.group, shape.head_dim, seed + 10);
    const std::int64_t n = rows.first.back();
    std::vector<float> before = random_elements<float>(3 * n, seed + 20, 0.01F);
    for (float& x : before) x = std::abs(x);
    const auto [got, expected] = both(before, [&](bool gpu, float* out) {
      AttentionStats a;
      a.group = wanted.group, a.weigh_by_visible = wanted.weigh, a.visible_offset = 3;
      a.wants_sum = wanted.sum, a.wants_sum_sq = wanted.sum_sq, a.wants_max = wanted.max;
      a.kv = rows.at(gpu), a.queries = queries.at(gpu), a.sum = out, a.sum_sq = out + n, a.max = out + 2 * n;
      return a;
    });
    EXPECT_TRUE(all_near(got, expected, tolerance * 1e-2, tolerance));
  }
};

using Group = AttentionStats::Group;

TEST_F(AttentionStatsCuda, EqualCpuVersion) {
  // Queries keep 16 (bf16) or 22 bits (f16) and logits are sums of head_dim products: errors of some 1e-4 in an exponent. With f32 the
  // order of sums is all that differs.
  check<bf16>({2, 4, 128}, {130, 1}, {35}, {}, 1, 5e-4);
  check<f16>({1, 3, 64, 32}, {127, 129, 128}, {12, 1, 0}, {Group::kSum}, 2, 2e-4);
  check<bf16>({1, 1, 256}, {65, 64}, {5, 5}, {}, 3, 5e-4);
  check<bf16>({2, 2, 64}, {40, 90}, {33}, {Group::kMean, true, false, false, true}, 4, 5e-4);
  for (const std::int32_t group : {1, 2, 3, 4, 7, 8, 16}) {
    check<f16>({1, group, 64}, {50}, {11}, {Group::kMax, true, true, true, group % 2 == 0}, 10, 2e-4);
    if (group % 3 == 1) check<bf16>({1, group, 64}, {50}, {6}, {Group::kMean, true, true, true}, 11, 5e-4);
  }
  check<f16>({1, 4, 128}, {140}, {20}, {Group::kSum, false, true, false}, 12, 2e-4);
  check<f16>({1, 4, 128}, {140}, {20}, {Group::kMax, false, false, true}, 13, 2e-4);
  check<bf16>({2, 2, 64}, {0, 0}, {4}, {}, 30, 0);
  check<bf16>({2, 2, 64}, {5, 5}, {0}, {}, 31, 1e-9);
}

TEST_F(AttentionStatsCuda, AnyShapeWithoutTensorCores) {
  const FlatGrids flat;
  check<float>({2, 2, 64}, {33, 64, 1, 0}, {9, 4}, {Group::kMean, true, true, true, true}, 20, 1e-4);
  check<float>({1, 1, 33, 8}, {20}, {3}, {}, 21, 1e-4);
  check<bf16>({1, 3, 80, 5}, {37, 2}, {6, 6}, {Group::kMax, true, true, true}, 22, 1e-4);
  check<f16>({1, 20, 64}, {18}, {2}, {Group::kSum}, 23, 1e-4);
}

class TokenStatsCuda : public CudaTest {
 protected:
  // Probabilities differ in their last bits (sums and exponentials in fp32), so words that hold floats have a tolerance; the others are
  // equal. No probability is near a threshold.
  void check(TokenStats op, std::int32_t queries, double tolerance) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(op.kind) << ", group " << static_cast<int>(op.group) << ", queries "
                                    << queries);
    RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 64, .page_tokens = 16, .num_words = 3}, {0, 3, 70, 90}, 1);
    std::int32_t last = 0;  // the last tokens are not seen by the first queries
    rows.for_each_token([&](std::int32_t r, std::int32_t, std::size_t slot) { last = r > 1 ? std::max(last, rows.position[slot]) : last; });
    const QueriesFixture q({queries == 1 ? 0 : 1, queries}, {10, last}, 4, 64, 2);
    const std::size_t slots = rows.position.size();
    op.first_word = 1;
    for (int step = 0; step < 2; ++step)
      run_both([&](bool gpu) {
        op.kv = rows.at(gpu), op.queries = q.at(gpu);
        return op;
      });
    const std::vector<std::uint32_t> got = rows.device_words(cuda());
    rows.for_each_token([&](std::int32_t r, std::int32_t i, std::size_t slot) {
      for (std::int32_t w = 1; w < 1 + op.num_words(); ++w) {
        const std::uint32_t x = got[static_cast<std::size_t>(w) * slots + slot], y = rows.words[static_cast<std::size_t>(w) * slots + slot];
        if (tolerance == 0) {
          EXPECT_EQ(x, y) << "row " << r << ", token " << i << ", word " << w;
        } else {
          EXPECT_NEAR(std::bit_cast<float>(x), std::bit_cast<float>(y), tolerance * (0.01 + std::abs(std::bit_cast<float>(y))));
        }
      }
    });
  }
};

TEST_F(TokenStatsCuda, EqualsCpuVersion) {
  using Kind = TokenStats::Kind;
  TokenStats op;
  for (const std::int32_t queries : {1, 5}) {
    op = {};
    check(op, queries, 1e-4);
    op.weigh_by_visible = true, op.group = AttentionStats::Group::kMax;
    check(op, queries, 1e-4);
    op.decay = 0.7F, op.group = AttentionStats::Group::kSum;
    check(op, queries, 1e-4);
    op = {}, op.kind = Kind::kMoments;
    check(op, queries, 1e-4);
    op = {}, op.kind = Kind::kRing, op.ring_tokens = 40;
    check(op, queries, 0);
    op.threshold_by_position = true;
    check(op, queries, 0);
    op = {}, op.kind = Kind::kRecurrence, op.threshold = 0.01F;
    check(op, queries, 0);
    op = {}, op.kind = Kind::kTopHits, op.top = 7;
    check(op, queries, 0);
  }
}

// More than are taken together; probabilities that are summed over the group pass 1.
TEST_F(TokenStatsCuda, ManyQueriesInTheirOrder) {
  using Kind = TokenStats::Kind;
  constexpr std::int32_t kQueries = 70;
  TokenStats op;
  op.decay = 0.9F, op.weigh_by_visible = true;
  check(op, kQueries, 1e-4);
  op = {}, op.kind = Kind::kRing, op.ring_tokens = 40;
  check(op, kQueries, 0);
  op = {}, op.kind = Kind::kRecurrence, op.threshold = 0.02F;
  check(op, kQueries, 0);
  op = {}, op.kind = Kind::kTopHits, op.top = 7, op.group = AttentionStats::Group::kSum;
  check(op, kQueries, 0);
}

TEST_F(TokenStatsCuda, NoiseIsRefused) {
  RowsFixture<f16> rows({.head_dim = 64, .num_words = 1}, {3}, 1);
  const Longs seeds{1};
  TokenStats op;
  op.kv = rows.device(), op.noise_seeds = seeds.data();
  EXPECT_THROW(run_cuda(op, cuda()), CudaError);
}

TEST_F(TokenStatsCuda, ProbeSums) {
  RowsFixture<bf16> rows({.kv_heads = 2, .group = 2, .head_dim = 64, .page_tokens = 16, .num_words = 2}, {20, 3, 70, 90}, 3);
  const QueriesFixture pieces({2, 1, 3}, {10, 20, 60}, 4, 64, 4);
  const Longs first{0, 1, 3};
  const Ints end{40, 200};
  run_both([&](bool gpu) { return ProbeSums{rows.at(gpu), 1, first.data(), pieces.at(gpu), end.data()}; });
  const std::vector<std::uint32_t> got = rows.device_words(cuda());
  rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
    const std::size_t at = rows.position.size() + slot;
    EXPECT_NEAR(std::bit_cast<float>(got[at]), std::bit_cast<float>(rows.words[at]), 1e-5);
  });
}

TEST_F(TokenStatsCuda, LagScores) {
  RowsFixture<f16> rows({.kv_heads = 2, .head_dim = 80, .page_tokens = 16}, {0, 40, 300, 290}, 5);
  const Ints begin{0, 4, 0, 3}, partitions{0, 0, 4, 5};
  for (const std::int32_t lag : {1, 48})
    for (const bool ranks : {false, true}) {
      const auto scores = both(random_elements<float>(rows.first.back(), 6), [&](bool gpu, float* x) {
        return LagScores{rows.at(gpu), begin.data(), partitions.data(), lag, ranks, 1e-6F, x};
      });
      EXPECT_TRUE(all_near(scores, 1e-6, ranks && lag > 1 ? 0.0 : 1e-5));
    }
}

// Sums of at most 512 products in fp32, then doubles.
TEST_F(CudaTest, QueryMoments) {
  for (const std::int32_t head_dim : {7, 80}) {
    for (const bool turns : {false, true}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", turns " << turns);
      constexpr std::int32_t kHeads = 2;
      const QueriesFixture queries({0, 5, 600}, {0, 40, 700}, kHeads, head_dim, 1);
      const Ints future{1, 41, 701};
      const std::int64_t lines = 3LL * kHeads * head_dim;
      const std::vector<float> frequencies = random_elements<float>(3 * (head_dim / 2), 7);
      Twice<float> mean(lines), covariance(lines * head_dim);
      run_both([&](bool gpu) {
        QueryMoments op;
        op.num_sequences = 3, op.q_heads = kHeads, op.head_dim = head_dim, op.skip_tokens = 4, op.unbiased = turns;
        op.frequencies = turns ? frequencies.data() : nullptr, op.magnitude = 1.25F;
        op.future_begin = future.data(), op.num_future = 64;
        op.queries = queries.at(gpu), op.mean = mean.at(gpu), op.covariance = covariance.at(gpu);
        return op;
      });
      EXPECT_TRUE(all_near(mean.device(cuda()), mean.host(), 1e-6, 1e-5));
      EXPECT_TRUE(all_near(covariance.device(cuda()), covariance.host(), 1e-5, 1e-5));
    }
  }
}

// Logits up to about 30, of sums in fp32 in another order: their errors are the relative errors of probabilities.
TEST_F(CudaTest, ExpectedAttention) {
  for (const std::int32_t head_dim : {7, 80}) {
    RowsFixture<bf16> rows({.kv_heads = 2, .group = 2, .head_dim = head_dim, .page_tokens = 16}, {0, 3, 64, 150}, 2);
    const auto d = static_cast<std::size_t>(head_dim);
    Twice<float> mean = normals(static_cast<std::int64_t>(8 * d), 3);
    std::vector<float> x = random_elements<float>(static_cast<std::int64_t>(8 * d * d), 4, 0.2F);
    for (std::size_t h = 0; h < 8; ++h)
      for (std::size_t i = 0; i < d; ++i) x[(h * d + i) * d + i] = 3.0F;
    Twice<float> covariance(x);
    for (const bool squares : {false, true})
      for (const std::int32_t sinks : {0, 4, 1000}) {
        const auto scores = both<float>(rows.first.back(), [&](bool gpu, float* out) {
          return ExpectedAttention{rows.at(gpu), mean.at(gpu), squares, covariance.at(gpu), sinks, out};
        });
        EXPECT_TRUE(all_near(scores, 1e-6, 1e-4)) << head_dim << squares << sinks;
      }
  }
}

// Probabilities of fp32 sums in another order; variances are differences of such.
TEST_F(CudaTest, WindowMoments) {
  for (const std::int32_t head_dim : {20, 64}) {
    RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = head_dim, .page_tokens = 16}, {40, 3, 64, 150, 10, 0}, 5);
    const QueriesFixture queries({1, 6, 0}, {50, 170, 20}, 4, head_dim, 6);
    Twice<float> scores(rows.first.back()), entropy(3), variance(3);
    run_both([&](bool gpu) {
      WindowMoments op;
      op.wants_scores = op.wants_spread = true, op.kv = rows.at(gpu), op.queries = queries.at(gpu);
      op.scores = scores.at(gpu), op.entropy = entropy.at(gpu), op.variance = variance.at(gpu);
      return op;
    });
    EXPECT_TRUE(all_near(scores.device(cuda()), scores.host(), 1e-6, 1e-4));
    EXPECT_TRUE(all_near(entropy.device(cuda()), entropy.host(), 1e-4, 1e-4));
    EXPECT_TRUE(all_near(variance.device(cuda()), variance.host(), 1e-6, 1e-4));
  }
}

class WindowMomentsCuda : public CudaTest {
 protected:
  template <class T>
  void check(const RowsShape& shape, const Ints& lengths, const Ints& counts, bool scores, bool spread) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << ", group " << shape.group << " of " << shape.head_dim);
    RowsFixture<T> rows(shape, lengths, 1);
    Ints last;
    for (std::size_t s = 0; s < counts.size(); ++s) last.push_back(lengths[s * static_cast<std::size_t>(shape.kv_heads)] + 3);
    const QueriesFixture queries(counts, last, shape.kv_heads * shape.group, shape.head_dim, 2);
    const std::int64_t n = rows.first.back(), s = std::ssize(counts);
    const auto moments = both(std::vector<float>(static_cast<std::size_t>(n + 2 * s), -1.0F), [&](bool gpu, float* out) {
      WindowMoments a;
      a.wants_scores = scores, a.wants_spread = spread, a.gamma = 50, a.kv = rows.at(gpu), a.queries = queries.at(gpu);
      a.scores = out, a.entropy = out + n, a.variance = out + n + s;
      return a;
    });
    EXPECT_TRUE(all_near(moments, 1e-6, 2e-4));  // probabilities in fp32, gamma times the difference of sums of their squares
  }
};

TEST_F(WindowMomentsCuda, EqualsCpuVersion) {
  check<float>({2, 2, 64}, {40, 7, 0, 33}, {8, 3}, true, true);
  check<bf16>({1, 3, 128, 32}, {50}, {5}, true, true);
  check<f16>({1, 4, 33, 5}, {21, 60}, {1, 0}, true, true);
  check<f16>({1, 1, 64}, {30}, {4}, true, false);
  check<f16>({1, 1, 64}, {30}, {4}, false, true);
  check<f16>({1, 2, 64}, {0}, {4}, true, true);
}

}  // namespace
}  // namespace kvlab
