// Andes' gains and its choice of a batch, against numbers by hand.
#include "policies/order/batch_search.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace kvlab {
namespace {

// A token per nanosecond is read, from now on; the horizon is 10 ns, so the area below the line is 50.
TEST(GainOfServing, IsAllOfTheLineWhereTokensComeInTime) { EXPECT_DOUBLE_EQ(gain_of_serving({0, 1, 0}, 10, 1), 1); }
TEST(GainOfServing, IsHalfOfItWhereTheyComeHalfAsFast) { EXPECT_DOUBLE_EQ(gain_of_serving({0, 1, 0}, 10, 2), 0.5); }
// Two tokens are ahead of the line: until 2 nothing is gained; with a token every 2 ns the buffer is used up at 4.
TEST(GainOfServing, BeginsWhenTheBufferIsReadUp) {
  EXPECT_DOUBLE_EQ(gain_of_serving({0, 1, 2}, 10, 1), 0.64);
  EXPECT_DOUBLE_EQ(gain_of_serving({0, 1, 2}, 10, 2), (4 + 0.5 * (100 - 16)) / 100);
}
TEST(GainOfServing, IsNothingWhereTheBufferLasts) { EXPECT_EQ(gain_of_serving({0, 1, 10}, 10, 1), 0); }
TEST(GainOfServing, CountsTheLineFromItsBegin) {
  EXPECT_DOUBLE_EQ(gain_of_serving({-10, 1, 0}, 10, 1), 0.25) << "half of the line's length is lost already";
  EXPECT_DOUBLE_EQ(gain_of_serving({5, 1, 0}, 10, 1), 1);
}
// The closed form against the sum of min(t / step, (t - lag) / token).
TEST(GainOfServing, IsTheIntegral) {
  for (const double step : {0.5, 1.0, 1.3, 3.0, 20.0}) {
    for (const double begins : {-7.0, 0.0, 2.5}) {
      const Reader reader{begins, 1.1, 3};
      constexpr int kParts = 200'000;
      double area = 0;
      for (int i = 0; i < kParts; ++i) {
        const double t = 10 * (i + 0.5) / kParts;
        if (t > reader.lag_begins()) area += std::min(t / step, (t - reader.lag_begins()) / 1.1) * 10 / kParts;
      }
      const double whole = (10 - begins) * (10 - begins) / 2.2;
      EXPECT_NEAR(gain_of_serving(reader, 10, step), area / whole, 1e-6) << step << " " << begins;
    }
  }
}

BatchCandidate candidate(std::int64_t delivered, std::int64_t context, std::int64_t blocks) {
  return {{0, 1, delivered}, context, blocks, false};
}
const auto kFast = [](std::int32_t, std::int64_t) { return 0.5; };

std::string chosen(std::vector<BatchCandidate> all, std::vector<std::int32_t> sizes, std::int64_t blocks,
                   const std::function<double(std::int32_t, std::int64_t)>& step) {
  const std::size_t size = choose_batch(all, sizes, blocks, 10, step);
  std::string text;
  for (const BatchCandidate& c : all) text += c.is_chosen ? "1" : "0";
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '1')), size);
  return text;
}

TEST(ChooseBatch, MostGainPerContextUntilMemoryIsFull) {
  const std::vector<BatchCandidate> all{candidate(0, 100, 6), candidate(0, 10, 1), candidate(0, 50, 3)};
  EXPECT_EQ(chosen(all, {1, 2, 3}, 4, kFast), "011");
  EXPECT_EQ(chosen(all, {1, 2, 3}, 10, kFast), "111");
  EXPECT_EQ(chosen(all, {1}, 10, kFast), "010");
}
// A reader with a full buffer gains nothing and gives way, though its context is short.
TEST(ChooseBatch, WhoIsAheadGivesWay) { EXPECT_EQ(chosen({candidate(10, 1, 2), candidate(0, 100, 2)}, {1, 2}, 3, kFast), "01"); }

// A step takes b ns squared: of three readers one has gain 1, two 2 x 0.25, three 3 x 1/9.
TEST(ChooseBatch, FewerWhereLargerBatchesAreTooSlow) {
  const std::vector<BatchCandidate> all{candidate(0, 10, 1), candidate(0, 10, 1), candidate(0, 10, 1)};
  EXPECT_EQ(chosen(all, {1, 2, 3}, 100, [](std::int32_t b, std::int64_t) { return 1.0 * b * b; }), "100");
  EXPECT_EQ(chosen(all, {1, 2, 3}, 100, [](std::int32_t b, std::int64_t) { return 1 + 0.1 * b; }), "111");
}
TEST(ChooseBatch, SomebodyIsServedThoughNobodyGains) {
  EXPECT_EQ(chosen({candidate(10, 1, 2), candidate(10, 1, 2)}, {1, 2}, 4, kFast), "11");
}
TEST(ChooseBatch, NobodyWithoutMemory) { EXPECT_EQ(chosen({candidate(0, 1, 2)}, {1}, 1, kFast), "0"); }

TEST(BatchSizes, AscendToTheMost) {
  EXPECT_EQ(batch_sizes(12, 4), (std::vector<std::int32_t>{3, 6, 9, 12}));
  EXPECT_EQ(batch_sizes(2, 4), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(batch_sizes(1, 1), (std::vector<std::int32_t>{1}));
}

TEST(ObservedSteps, FindsALine) {
  ObservedSteps steps;
  EXPECT_TRUE(steps.is_empty());
  steps.add(4, 140);
  EXPECT_DOUBLE_EQ(steps.step_ns(50), 140) << "one size: its mean";
  for (const int b : {8, 16, 4, 32, 8}) steps.add(b, 100 + 10 * b);
  EXPECT_NEAR(steps.step_ns(64), 740, 1e-6);
  EXPECT_GE(steps.step_ns(0), 50);
}

}  // namespace
}  // namespace kvlab
