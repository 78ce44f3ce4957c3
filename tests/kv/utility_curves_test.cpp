// LU-KV: shares per head from curves found offline.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/error_of.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/trained_fixture.h"

namespace kvlab::test {
namespace {

// A recipe with curves that drop half of every head, but for the line of 60 %.
std::string with_curves(std::int64_t heads, const std::vector<float>& at_60, const std::string& budget) {
  std::vector<float> dropped(static_cast<std::size_t>(99 * 3 * heads), 0.5F);
  std::copy(at_60.begin(), at_60.end(), dropped.begin() + 59 * 3 * heads);
  TrainedFile curves;
  curves.add("prune_ratios", {99, 3, heads}, dropped);
  return "{recipe: lukv, weights: " + curves.file() + ", " + budget + "}";
}
const std::vector<float> kAt60{0.302F, 0.894F, 0.75F, 0.25F, 1.0F, 0.2F};

std::vector<std::vector<std::int32_t>> curves_keep(const std::string& recipe, const AttentionTrace& trace) {
  return replay_listed(recipe, trace).kept_of_prompt;
}

// 60 % of 200 tokens are dropped: heads keep 139.6 and 21.2 in layer 0, together 161, and the larger remainder rounds up. A head that would
// keep nothing keeps one token. The budget may be a share or tokens.
TEST(UtilityCurves, HeadsKeepTheLinesShares) {
  const AttentionTrace trace = sample({});  // 3 layers, 2 KV heads
  const std::vector<std::size_t> expected{140, 21, 50, 150, 1, 160};
  for (const char* budget : {"compression_ratio: 0.6", "budget_frac: 0.4", "budget_tokens: 80"}) {
    const auto kept = curves_keep(with_curves(2, kAt60, budget), trace);
    ASSERT_EQ(kept.size(), 6U);
    for (std::size_t r = 0; r < 6; ++r) {
      EXPECT_EQ(kept[r].size(), expected[r]) << budget << ", row " << r;
      if (expected[r] < 5) continue;
      for (std::int32_t t = 0; t < 4; ++t) EXPECT_EQ(nth(kept[r], t), t);
      EXPECT_EQ(kept[r].back(), 199);
    }
  }
  for (const auto& row : curves_keep(with_curves(2, kAt60, "compression_ratio: 0.61"), trace)) EXPECT_EQ(row.size(), 100U);
}

TEST(UtilityCurves, CostsWhatItComputes) {
  const AttentionTrace trace = sample({});
  expect_cost_is_replay(trace, recipe_of(with_curves(2, kAt60, "compression_ratio: 0.6")));
}

TEST(UtilityCurves, RefusesCurvesOfAnotherModel) {
  const AttentionTrace trace = sample({});
  const std::string why = error_of([&] { curves_keep(with_curves(4, {}, "budget_frac: 0.4"), trace); });
  EXPECT_TRUE(why.find("'prune_ratios'") != std::string::npos && why.find("[99, 3, 2]") != std::string::npos) << why;

  EXPECT_TRUE(error_of([&] { curves_keep("{recipe: lukv}", trace); }).starts_with("recipe 'lukv' cannot run: it needs trained tensors"));
  EXPECT_TRUE(needs_weights("lukv"));
}

}  // namespace
}  // namespace kvlab::test
