#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "policies/kv/allocator/counts.h"

namespace kvlab {
namespace {

using Ints = std::vector<std::int32_t>;

Ints split(const std::vector<double>& weights, std::int64_t total, const Ints& floor, const Ints& cap, Excess excess) {
  Ints counts(weights.size());
  split_total(weights, total, floor, cap, excess, counts);
  return counts;
}

TEST(SplitTotal, GoesByWeightWhereNothingIsBounded) {
  EXPECT_EQ(split({1, 2, 3, 4}, 100, Ints(4, 0), Ints(4, 1000), Excess::kLost), (Ints{10, 20, 30, 40}));
  EXPECT_EQ(split({1, 1, 1}, 100, Ints(3, 0), Ints(3, 1000), Excess::kLost), (Ints{33, 34, 33}));
  EXPECT_EQ(split({0, 0}, 10, Ints(2, 0), Ints(2, 1000), Excess::kLost), (Ints{5, 5}));
  EXPECT_EQ(split({std::numeric_limits<double>::quiet_NaN(), 1}, 10, Ints(2, 0), Ints(2, 1000), Excess::kLost), (Ints{0, 10}));
  EXPECT_EQ(split({}, 10, {}, {}, Excess::kEven), Ints{});
}

TEST(SplitTotal, PassesExcessOnAsAsked) {
  const std::vector<double> weights{6, 3, 1};
  EXPECT_EQ(split(weights, 100, Ints(3, 0), {20, 100, 100}, Excess::kLost), (Ints{20, 30, 10}));
  EXPECT_EQ(split(weights, 100, Ints(3, 0), {20, 100, 100}, Excess::kEven), (Ints{20, 50, 30}));
  EXPECT_EQ(split(weights, 100, Ints(3, 0), {20, 100, 100}, Excess::kByWeight), (Ints{20, 60, 20}));
  EXPECT_EQ(split(weights, 100, {0, 0, 30}, {100, 100, 100}, Excess::kEven),
            (Ints{50, 20, 30}));  // what the floor takes comes from the others
}

TEST(SplitTotal, SumsToTheTotalWithinTheBounds) {
  rc::check([](std::uint16_t seed) {
    const auto n = *rc::gen::inRange<std::size_t>(1, 20);
    const auto weights = *rc::gen::container<std::vector<std::int32_t>>(n, rc::gen::inRange(0, 100));
    const auto cap = *rc::gen::container<Ints>(n, rc::gen::inRange(0, 50));
    Ints floor(n);
    for (std::size_t i = 0; i < n; ++i) floor[i] = cap[i] * static_cast<int>(seed % 3) / 4;
    const std::int64_t total = *rc::gen::inRange(0, 1000);
    const std::int64_t most = std::accumulate(cap.begin(), cap.end(), 0), least = std::accumulate(floor.begin(), floor.end(), 0);
    for (const Excess excess : {Excess::kEven, Excess::kByWeight}) {
      const Ints counts = split(std::vector<double>(weights.begin(), weights.end()), total, floor, cap, excess);
      for (std::size_t i = 0; i < n; ++i) RC_ASSERT(counts[i] >= floor[i] && counts[i] <= cap[i]);
      RC_ASSERT(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == std::clamp(total, least, most));
    }
  });
}

TEST(SplitTotal, SoftmaxOfNegativeGivesTheSmallestMost) {
  const std::vector<double> x{0, std::log(2), std::log(4)};
  EXPECT_EQ(split(softmax_of_negative(x, 1), 70, Ints(3, 0), Ints(3, 100), Excess::kLost), (Ints{40, 20, 10}));
}

}  // namespace
}  // namespace kvlab
