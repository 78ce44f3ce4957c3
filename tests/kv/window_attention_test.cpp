#include <gtest/gtest.h>

#include "tests/kv/plain_attention.h"

namespace kvlab::test {
namespace {

TEST(WindowAttention, EqualsPlainLoopsForEveryGroupSize) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, 65, 3);
    auto scorer = make_part<ScorerRegistry>("window_attention", "{window_tokens: 5, pool: none}");
    LayerStep step = layer.prompt_step(5);
    const std::vector<float> scores = scored(*scorer, step);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      const std::vector<double> expected = plain_window(layer, r / 2, r % 2, 5);
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(scores[static_cast<std::size_t>(step.kv.first[r]) + i], expected[i], 2e-6) << "row " << r << " token " << i;
    }
  }
}

TEST(WindowAttention, TakesNoMoreThanItsOwnOfALargerWindow) {
  RandomLayer layer({1, 4, 2, 8, 16}, 2, 65, 3);
  auto scorer = make_part<ScorerRegistry>("window_attention", "{window_tokens: 8}");
  LayerStep small = layer.prompt_step(8);
  const std::vector<float> own = scored(*scorer, small);
  EXPECT_EQ(layer.ops.log().size(), 2U);
  LayerStep large = layer.prompt_step(40);
  EXPECT_EQ(scored(*scorer, large), own);
}

TEST(WindowAttention, LogsTheSameCallsWithAndWithoutData) { expect_same_log_without_data("window_attention", "{window_tokens: 16}"); }

TEST(WindowAttention, MeanOverTheWindowIsTheSumOverItsSize) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 65, 3);
  auto sum = make_part<ScorerRegistry>("window_attention", "{window_tokens: 8}");
  auto mean = make_part<ScorerRegistry>("window_attention", "{window_tokens: 8, queries: mean}");
  LayerStep step = layer.prompt_step(8);
  const std::vector<float> of_sum = scored(*sum, step), of_mean = scored(*mean, step);
  for (std::size_t i = 0; i < 130; ++i) EXPECT_FLOAT_EQ(of_mean[i], of_sum[i] / 8);
}

}  // namespace
}  // namespace kvlab::test
