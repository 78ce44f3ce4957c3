#include <gtest/gtest.h>

#include <cmath>

#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

// Plain loops: mean over the group of the softmax rows of the last w queries, summed, no pooling.
std::vector<double> plain_scores(const RandomLayer& layer, std::int32_t sequence, std::int32_t head, std::int32_t w) {
  const ModelShape& m = layer.model;
  const auto s = static_cast<std::size_t>(sequence);
  const std::int32_t n = layer.seqs[s].new_tokens;
  std::vector<double> sum(static_cast<std::size_t>(n), 0.0);
  for (std::int32_t t = n - w; t < n; ++t) {
    for (std::int32_t g = 0; g < m.group(); ++g) {
      std::vector<double> p;
      double total = 0;
      for (std::int32_t i = 0; i <= t; ++i) {
        double z = 0;
        for (std::int32_t c = 0; c < m.head_dim; ++c)
          z += static_cast<double>(layer.q[s][static_cast<std::size_t>((t * m.q_heads + head * m.group() + g) * m.head_dim + c)]) *
               layer.k[s][static_cast<std::size_t>((i * m.kv_heads + head) * m.head_dim + c)];
        p.push_back(std::exp(z / std::sqrt(m.head_dim)));
        total += p.back();
      }
      for (std::size_t i = 0; i < p.size(); ++i) sum[i] += p[i] / total / m.group();
    }
  }
  return sum;
}

TEST(WindowAttention, EqualsPlainLoopsForEveryGroupSize) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, 65, 3);
    auto scorer = make_part<ScorerRegistry>("window_attention", "{window_tokens: 5, pool: none}");
    LayerStep step = layer.prompt_step(5);
    std::vector<float> scores(static_cast<std::size_t>(step.kv.total()));
    scorer->score(step, scores.data());
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      const std::vector<double> expected = plain_scores(layer, r / 2, r % 2, 5);
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(scores[static_cast<std::size_t>(step.kv.first[r]) + i], expected[i], 2e-6) << "row " << r << " token " << i;
    }
  }
}

TEST(WindowAttention, TakesNoMoreThanItsOwnOfALargerWindow) {
  RandomLayer layer({1, 4, 2, 8, 16}, 2, 65, 3);
  auto scorer = make_part<ScorerRegistry>("window_attention", "{window_tokens: 8}");
  std::vector<float> own(260), larger(260);
  LayerStep small = layer.prompt_step(8);
  scorer->score(small, own.data());
  LayerStep large = layer.prompt_step(40);
  scorer->score(large, larger.data());
  EXPECT_EQ(larger, own);
}

TEST(WindowAttention, LogsTheSameCallsWithAndWithoutData) {
  RandomLayer with({1, 8, 2, 8, 16}, 2, 65, 3), without({1, 8, 2, 8, 16}, 2, 65, 3, 0, false);
  auto scorer = make_part<ScorerRegistry>("window_attention", "{window_tokens: 16}");
  LayerStep a = with.prompt_step(16), b = without.prompt_step(16);
  std::vector<float> scores(static_cast<std::size_t>(a.kv.total()));
  scorer->score(a, scores.data());
  scorer->score(b, nullptr);
  ASSERT_EQ(with.ops.log().size(), 2U);
  EXPECT_EQ(with.ops.log(), without.ops.log());
}

TEST(WindowAttention, MeanOverTheWindowIsTheSumOverItsSize) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 65, 3);
  auto sum = make_part<ScorerRegistry>("window_attention", "{window_tokens: 8}");
  auto mean = make_part<ScorerRegistry>("window_attention", "{window_tokens: 8, queries: mean}");
  LayerStep step = layer.prompt_step(8);
  std::vector<float> of_sum(130), of_mean(130);
  sum->score(step, of_sum.data());
  mean->score(step, of_mean.data());
  for (std::size_t i = 0; i < 130; ++i) EXPECT_FLOAT_EQ(of_mean[i], of_sum[i] / 8);
}

}  // namespace
}  // namespace kvlab::test
