#include "kernels/score/token_stats/token_stats.h"

#include "policies/kv/format/probe_sums.h"
#include "policies/kv/scorer/lag_scores_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

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

}  // namespace
}  // namespace kvlab
