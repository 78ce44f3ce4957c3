#include "policies/kv/scorer/hold_largest/hold_largest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvlab {
namespace {

std::vector<bool> held(std::vector<float> keys, std::int32_t keep, std::int32_t tokens, double frac) {
  const std::int64_t first[] = {0, static_cast<std::int64_t>(keys.size())};
  std::vector<float> scores(keys.size(), 0.0F);
  run_cpu(HoldLargest{1, first, keys.data(), &keep, tokens, frac, scores.data()});
  std::vector<bool> is_held;
  for (const float s : scores) is_held.push_back(std::isinf(s));
  return is_held;
}

using Held = std::vector<bool>;

// EasyKV with budget 6, 1 sink and recent share 0.3: victims are looked for among the 6 - 1 - 1 = 4 tokens of smallest spread.
TEST(HoldLargest, OneVictimAmongTheSmallestKeys) {
  EXPECT_EQ(held({5, 1, 7, 2, 3, 6, 4}, 6, 1, 0.3), (Held{true, false, true, false, false, true, false}));
}

TEST(HoldLargest, TiesGoToTheLowerIndex) { EXPECT_EQ(held({1, 1, 1, 1}, 3, 1, 0), (Held{true, true, false, false})); }

TEST(HoldLargest, NothingIsHeldWhereNothingGoes) { EXPECT_EQ(held({1, 2}, 2, 1, 0.5), (Held{false, false})); }

// 4 victims, but only 3 - 1 candidates: then just the reserve is held, so that the scores decide about the others.
TEST(HoldLargest, LargeCutsHoldTheReserveAlone) {
  EXPECT_EQ(held({1, 2, 3, 4, 5, 6, 7}, 3, 1, 0), (Held{false, false, false, false, false, false, true}));
  EXPECT_EQ(held({1, 2}, 0, 1, 0), (Held{false, false}));
  EXPECT_EQ(held({}, 0, 1, 0), Held{});
}

}  // namespace
}  // namespace kvlab
