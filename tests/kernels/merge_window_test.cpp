#include <gtest/gtest.h>

#include "policies/kv/disposal/merge_window_op.h"
#include "tests/kv/disposal_fixture.h"

namespace kvlab::test {
namespace {

// Values after a merge of one row with these masses; token i has value {10^i, -10^i}.
std::vector<float> merged(const std::vector<float>& mass, const std::vector<std::int32_t>& kept, std::int32_t window,
                          std::int64_t seed = 1) {
  SmallLayer::Vectors k, v;
  float x = 1;
  for (std::size_t i = 0; i < mass.size(); ++i, x *= 10) k.push_back({1, 2}), v.push_back({x, -x});
  SmallLayer layer(k, v);
  const KeptLists lists({kept});
  Parted parted(layer, lists);
  run_cpu(MergeWindow{parted.rows, window, mass.data(), &seed});
  std::vector<float> first;
  for (const std::int32_t i : kept) {
    first.push_back(layer.value(0, i)[0]);
    EXPECT_EQ(layer.value(0, i)[1], -first.back());
    EXPECT_EQ(layer.key(0, i), (std::vector<float>{1, 2}));
  }
  return first;
}

using Floats = std::vector<float>;

TEST(MergeWindow, SpreadsOverTheKeptTokensBehind) {
  EXPECT_EQ(merged({2, 1, 1, 1}, {1, 2, 3}, 2), (Floats{10.5F, 100.5F, 1000}));
  EXPECT_EQ(merged({1, 2, 1, 1}, {0, 2, 3}, 2), (Floats{1, 105, 1005}));
  EXPECT_EQ(merged({3, 9, 1, 2}, {2, 3}, 1), (Floats{111, 1000}));  // two tokens join the same one
}

// Near the end of the row the value is divided by the tokens that there are.
TEST(MergeWindow, ShorterWindowAtTheEnd) {
  EXPECT_EQ(merged({1, 9, 1, 1}, {0, 2, 3}, 32), (Floats{1, 105, 1005}));
  EXPECT_EQ(merged({1, 1, 1, 9}, {0, 1, 2}, 32), (Floats{1, 10, 100}));  // no later token: deleted
  EXPECT_EQ(merged({1}, {}, 32), Floats{});
}

TEST(MergeWindow, MassesOfZeroAreHarmless) {
  EXPECT_EQ(merged({1, 0, 0}, {1, 2}, 2), (Floats{10.5F, 100.5F}));  // infinite ratio: certain
  EXPECT_EQ(merged({0, 0, 0}, {1, 2}, 2), (Floats{10, 100}));        // 0 / 0: never
  EXPECT_EQ(merged({0, 1, 1}, {1, 2}, 2), (Floats{10, 100}));
}

TEST(MergeWindow, JoinsWithTheRatioAsProbability) {
  int joined = 0;
  for (std::int64_t seed = 0; seed < 4000; ++seed) {
    const Floats a = merged({1, 3, 5}, {1, 2}, 2, seed);
    EXPECT_EQ(a, merged({1, 3, 5}, {1, 2}, 2, seed));
    joined += a[0] > 10 ? 1 : 0;
  }
  EXPECT_NEAR(joined / 4000.0, 0.25, 0.03);  // 4 deviations
}

}  // namespace
}  // namespace kvlab::test
