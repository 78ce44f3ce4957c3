#include "app/runs/sweep/score_interval.h"

#include <gtest/gtest.h>

namespace kvlab {
namespace {

TEST(ScoreInterval, WilsonByHand) {
  const auto [low, high] = wilson_interval(6, 8);
  EXPECT_NEAR(low, 0.4093, 5e-5);
  EXPECT_NEAR(high, 0.9285, 5e-5);
}

TEST(ScoreInterval, OfPairsByHand) {
  const std::tuple<PairedAnswers, double, double> cases[] = {
      // Nothing in common, all four answers lost: 0 of 4 is 0 to 0.4899, 4 of 4 is 0.5101 to 1; -1 + sqrt(0.4899^2 + 0.4899^2).
      {{0, 0, 4, 0}, -1, -0.3072},
      {{0, 4, 0, 0}, 0.3072, 1},
      // One answer: 0 of 1 is 0 to 0.7935, 1 of 1 is 0.2065 to 1.
      {{0, 0, 1, 0}, -1, 0.1221},
      {{1, 0, 0, 0}, -0.7935, 0.7935},
      {{0, 0, 0, 1}, -0.7935, 0.7935},
      // 10 of 20 with both: each share is 0.5 with 0.2993 to 0.7007, and the correlation is (100 - 10) / 100: 0.2007 * sqrt(0.2).
      {{10, 0, 0, 10}, -0.0898, 0.0898},
      // 12 of 20 is 0.3866 to 0.7812, 15 of 20 is 0.5313 to 0.8881; the correlation is (44 - 4 - 10) / sqrt(12 * 8 * 15 * 5) = 0.3536.
      {{11, 1, 4, 4}, -0.3592, 0.0794},
      // The correlation is negative, and not moved to 0: -24 / sqrt(48 * 2 * 38 * 12) = -0.1147.
      {{36, 12, 2, 0}, 0.0569, 0.3404}};
  for (const auto& [answers, low, high] : cases) {
    const auto [l, h] = paired_interval(answers);
    EXPECT_NEAR(l, low, 5e-5);
    EXPECT_NEAR(h, high, 5e-5);
  }
}

}  // namespace
}  // namespace kvlab
