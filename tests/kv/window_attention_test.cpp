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

TEST(WindowMeanVariance, IsTheMeanOverHeadsOfMeanAndWeighedVariance) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t window : {1, 5}) {
      RandomLayer layer({1, 2 * group, 2, 8, 12}, 2, 33, 9);
      auto scorer =
          make_part<ScorerRegistry>("window_mean_variance", "{gamma: 7, pool: none, window_tokens: " + std::to_string(window) + "}");
      EXPECT_EQ(scorer->protects().recent, window);
      const std::vector<float> scores = scores_after_prompt(layer, *scorer, 16);
      for (std::int32_t row = 0; row < 4; ++row)
        for (std::int32_t i = 0; i < 33 - window; ++i) {
          double wanted = 0;
          for (std::int32_t h = row % 2 * group; h < (row % 2 + 1) * group; ++h) {
            std::vector<double> p;
            for (std::int32_t t = 33 - window; t < 33; ++t) p.push_back(nth(plain_row_of_head(layer, row / 2, h, t), i));
            double mean = 0, var = 0;
            for (const double x : p) mean += x / window;
            for (const double x : p) var += window > 1 ? (x - mean) * (x - mean) / (window - 1) : 0;
            wanted += (mean + 7 * var) / group;
          }
          EXPECT_NEAR(nth(scores, row * 33 + i), wanted, 1e-5 * wanted + 1e-7) << group << " " << window << " " << i;
        }
    }
}

TEST(WindowMeanVariance, PoolsTheEarlierTokens) {
  RandomLayer layer({1, 4, 2, 8, 12}, 1, 20, 9), same({1, 4, 2, 8, 12}, 1, 20, 9);
  const auto plain = make_part<ScorerRegistry>("window_mean_variance", "{pool: none, window_tokens: 4}");
  const auto pooled = make_part<ScorerRegistry>("window_mean_variance", "{pool_tokens: 3, window_tokens: 4}");
  const std::vector<float> a = scores_after_prompt(layer, *plain, 4), b = scores_after_prompt(same, *pooled, 4);
  EXPECT_NEAR(b[0], (a[0] + a[1]) / 3, 1e-6);
  EXPECT_NEAR(b[7], (a[6] + a[7] + a[8]) / 3, 1e-6);
  EXPECT_NEAR(b[15], (a[14] + a[15]) / 3, 1e-6);  // the last one before the window
}

TEST(WindowMeanVariance, LogIsTheSameWithoutData) {
  expect_same_log_without_data("window_mean_variance", "{}");
  expect_same_log_without_data("window_mean_variance", "{window_tokens: 8, pool: none}");
}

}  // namespace
}  // namespace kvlab::test
