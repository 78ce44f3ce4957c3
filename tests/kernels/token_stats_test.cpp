#include "kernels/score/token_stats/token_stats.h"

#include <gtest/gtest.h>

#include <bit>

#include "kernels/score/token_scores_op.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

TokenStats stats_of(LayerStep& step, TokenStats::Kind kind) { return {.kv = step.kv, .queries = step.in.step.data(), .kind = kind}; }

// Each token's score by its statistics when the next position is `end`.
std::vector<float> scores_of(const KvRows& kv, TokenScores::Kind kind, std::int32_t end, std::int32_t ring_tokens = 0) {
  std::vector<float> scores(static_cast<std::size_t>(kv.total()));
  run_cpu(TokenScores{kv, kind, 0, ring_tokens, &end, nullptr, scores.data()});
  return scores;
}

float float_word(const KvRows& kv, std::int32_t channel, std::int32_t row, std::int32_t i) {
  return std::bit_cast<float>(kv.word(channel, row, i));
}

TEST(TokenStats, DecayedWeightedSumEqualsPlainLoops) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    for (const std::int32_t n : {1, 63, 64, 65}) {
      RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, n, 5, 2);
      LayerStep step = layer.prompt_step(1);
      TokenStats a = stats_of(step, TokenStats::Kind::kSum);
      a.first_word = 1;
      a.decay = 0.9F;
      a.weigh_by_visible = true;
      run_cpu(a);
      for (std::int32_t r = 0; r < 4; ++r) {
        std::vector<double> sum(static_cast<std::size_t>(n), 0.0);
        for (std::int32_t t = 0; t < n; ++t) {
          const std::vector<double> p = plain_row(layer, r / 2, r % 2, t);
          for (std::size_t i = 0; i < p.size(); ++i) sum[i] = static_cast<double>(0.9F) * sum[i] + (t + 1) * p[i];
        }
        for (std::int32_t i = 0; i < n; ++i) {
          EXPECT_NEAR(float_word(step.kv, 1, r, i), sum[static_cast<std::size_t>(i)], 2e-5 * (1 + sum[static_cast<std::size_t>(i)]));
          EXPECT_EQ(step.kv.word(0, r, i), 0U);  // another part's channel
        }
      }
    }
  }
}

TEST(TokenStats, MomentsGiveMeanAndSpread) {
  RandomLayer layer({1, 6, 2, 8, 16}, 1, 70, 5, 2);
  LayerStep step = layer.prompt_step(1);
  run_cpu(stats_of(step, TokenStats::Kind::kMoments));
  const std::vector<float> mean = scores_of(step.kv, TokenScores::Kind::kMean, 70),
                           spread = scores_of(step.kv, TokenScores::Kind::kSpread, 70);
  for (const std::int32_t i : {0, 1, 31, 68, 69}) {
    double sum = 0, square = 0;
    for (std::int32_t t = i; t < 70; ++t) {
      const double p = plain_row(layer, 0, 1, t)[static_cast<std::size_t>(i)];
      sum += p, square += p * p;
    }
    const double mu = sum / (70 - i);
    EXPECT_NEAR(mean[static_cast<std::size_t>(70 + i)], mu, 1e-6);
    EXPECT_NEAR(spread[static_cast<std::size_t>(70 + i)], std::sqrt(std::max(0.0, square / (70 - i) - mu * mu)), 2e-4);
  }
  EXPECT_EQ(spread[139], 0.0F);  // one query alone: no spread
}

TEST(TokenStats, RingHoldsTheLastQueriesOnly) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 90, 5, 2);
  LayerStep step = layer.prompt_step(1);
  TokenStats a = stats_of(step, TokenStats::Kind::kRing);
  a.ring_tokens = 40;
  ASSERT_EQ(a.num_words(), 2);
  run_cpu(a);
  const std::vector<float> ones = scores_of(step.kv, TokenScores::Kind::kRingSet, 90, 40),
                           zeros = scores_of(step.kv, TokenScores::Kind::kRingClear, 90, 40);
  for (std::int32_t r = 0; r < 2; ++r) {
    for (std::int32_t i = 0; i < 90; ++i) {
      int high = 0, seen = 0;
      for (std::int32_t t = std::max(50, i); t < 90; ++t, ++seen)
        high += int{plain_row(layer, 0, r, t)[static_cast<std::size_t>(i)] >= 1.0 / (t + 1)};
      const auto at = static_cast<std::size_t>(r * 90 + i);
      EXPECT_EQ(ones[at], static_cast<float>(high)) << i;
      EXPECT_EQ(zeros[at], static_cast<float>(high - seen)) << i;
    }
  }
}

TEST(TokenStats, RecurrenceKeepsLastHitAndLargestGap) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 66, 5, 2);
  LayerStep step = layer.prompt_step(1);
  TokenStats a = stats_of(step, TokenStats::Kind::kRecurrence);
  a.group = AttentionStats::Group::kMax;
  a.threshold = 0.05F;
  run_cpu(a);
  for (std::int32_t i = 0; i < 66; ++i) {
    std::int32_t last = -1, gap = 0;
    for (std::int32_t t = i; t < 66; ++t) {
      double p = 0;
      for (std::int32_t g = 0; g < 2; ++g) p = std::max(p, plain_row_of_head(layer, 0, g, t)[static_cast<std::size_t>(i)]);
      if (p < 0.05) continue;
      gap = std::max(gap, t - (last < 0 ? i : last));
      last = t;
    }
    EXPECT_EQ(step.kv.word(0, 0, i), static_cast<std::uint32_t>(last + 1)) << i;
    EXPECT_EQ(step.kv.word(1, 0, i), static_cast<std::uint32_t>(gap)) << i;
  }
}

TEST(TokenScores, RecurrenceFormulaByHand) {
  RandomLayer layer({1, 1, 1, 4, 4}, 1, 3, 5, 2);
  const KvRows kv = layer.store.rows();
  kv.word(0, 0, 0) = 1 + 2, kv.word(1, 0, 0) = 2;                                      // last hit at position 2, largest gap 2
  kv.word(0, 0, 1) = 1 + 1;                                                            // hit once, by itself
  const std::vector<float> scores = scores_of(kv, TokenScores::Kind::kRecurrence, 5);  // the newest query is at position 4
  const auto logistic = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_NEAR(scores[0], 2 * logistic(-1) + 2 * logistic(-3), 1e-6);
  EXPECT_NEAR(scores[1], 2 * logistic(-3), 1e-6);
  EXPECT_NEAR(scores[2], 2 * logistic(-2), 1e-6);  // never hit: idle since it came
}

TEST(TokenStats, TopHitsCountPerQuery) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 66, 5, 2);
  LayerStep step = layer.prompt_step(1);
  TokenStats a = stats_of(step, TokenStats::Kind::kTopHits);
  a.top = 3;
  run_cpu(a);
  std::vector<std::uint32_t> hits(66, 0), last(66, 0);
  for (std::int32_t t = 0; t < 66; ++t) {
    const std::vector<double> p = plain_row(layer, 0, 1, t);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const auto better = std::count_if(p.begin(), p.end(), [&](double x) { return x > p[i]; });
      if (better < 3) ++hits[i], last[i] = static_cast<std::uint32_t>(t) + 1;
    }
  }
  for (std::int32_t i = 0; i < 66; ++i) {
    EXPECT_EQ(step.kv.word(0, 1, i), last[static_cast<std::size_t>(i)]) << i;
    EXPECT_EQ(step.kv.word(1, 1, i), hits[static_cast<std::size_t>(i)]) << i;
  }
}

TEST(TokenStats, GumbelNoiseIsFixedBySeedAndFlattenedByTemperature) {
  const auto sums = [](std::int64_t seed, std::int32_t steps) {
    RandomLayer layer({1, 4, 2, 8, 16}, 1, 40, 5, 1);
    LayerStep step = layer.prompt_step(1);
    TokenStats a = stats_of(step, TokenStats::Kind::kSum);
    a.noise_seeds = &seed;
    a.noise_steps = &steps;
    a.temperature_per_step = 1.0F;
    run_cpu(a);
    std::vector<float> row;
    for (std::int32_t i = 0; i < 40; ++i) row.push_back(float_word(step.kv, 0, 1, i));
    return row;
  };
  EXPECT_EQ(sums(1, 0), sums(1, 0));
  EXPECT_NE(sums(1, 0), sums(2, 0));
  const std::vector<float> cold = sums(1, 0), hot = sums(1, 1000000);
  float total = 0;
  for (const float x : cold) total += x;
  EXPECT_NEAR(total, 40.0F, 1e-3F);  // still a distribution per query
  double uniform = 0;                // at infinite temperature token 39 - i gets 1 / (t + 1) from each of the last queries
  for (std::int32_t t = 39; t >= 0; --t) {
    uniform += 1.0 / (t + 1);
    EXPECT_NEAR(hot[static_cast<std::size_t>(t)], uniform, 1e-3);
  }
}

TEST(TokenStats, CostsAddUpOverRowsAndSkipSequencesWithoutQueries) {
  RandomLayer layer({1, 4, 2, 8, 16}, 2, 10, 5, 2, false);
  LayerStep step = layer.prompt_step(1);
  TokenStats a = stats_of(step, TokenStats::Kind::kMoments);
  const OpCall both = call(a);
  EXPECT_EQ(both.tokens, 40);
  EXPECT_EQ(both.bytes, 40 * 8 * 2 + 4 * 10 * 2 * 8 * 2 + 40 * 8 * 2);  // K; q of 10 queries and 2 heads per row; two channels twice
  EXPECT_EQ(both.flops, 4 * 2 * 55 * (2 * 9 + 1));
  std::vector<Queries> one = layer.step_queries;
  one[1].count = 0;
  a.queries = one.data();
  EXPECT_EQ(2 * call(a).bytes, both.bytes);
  EXPECT_EQ(2 * call(a).flops, both.flops);
}

}  // namespace
}  // namespace kvlab::test
