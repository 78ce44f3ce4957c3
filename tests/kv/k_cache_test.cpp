#include <gtest/gtest.h>

#include <set>

#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

TEST(KCache, ReadsTheUnionOfEachQueryHeadsLargestLogits) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    for (const std::int32_t prompt : {7, 8, 63, 65}) {
      Decode d({4, 2 * group, 2, 8, 16}, 2, prompt, 3);
      auto part = make_part<SelectorRegistry>("k_cache", "{top_tokens: 6}");
      d.prefill(*part);
      const auto rows = d.decode(*part);
      for (std::int32_t r = 0; r < 4; ++r) {
        std::set<std::int32_t> expected{d.tokens() - 1};
        for (std::int32_t h = 0; h < group; ++h) {
          std::vector<double> z;
          for (std::int32_t i = 0; i < prompt; ++i) z.push_back(d.logit(r, h, i));
          for (const std::int32_t i : best(z, 6)) expected.insert(i);
        }
        EXPECT_EQ(nth(rows, r), std::vector<std::int32_t>(expected.begin(), expected.end()));
      }
    }
  }
}

TEST(KCache, FetchesNothingWhereNothingChanged) {
  Decode d({4, 8, 2, 8, 16}, 1, 80, 3);
  auto part = make_part<SelectorRegistry>("k_cache", "{top_tokens: 6}");
  d.prefill(*part);
  d.decode(*part);
  part->take_traffic();
  LayerStep same = d.step();
  part->select(same);
  const Traffic traffic = part->take_traffic();
  EXPECT_GT(traffic.asked_units, 0);
  EXPECT_EQ(traffic.fetched_bytes, 0);
}

TEST(KCache, HalfOfTheCacheLiesOnTheHost) {
  Decode d({4, 2, 2, 8, 16}, 1, 1000, 3);
  auto part = make_part<SelectorRegistry>("k_cache", "{top_tokens: 6}");
  d.prefill(*part);
  const TierBytes held{2 * 1000 * 2 * 8 * 2, 0, 0};
  EXPECT_EQ(part->resident_in_layer(2, d.model, d.store.rows(), held), (TierBytes{(1000 + 7) * 2 * 8 * 2, (1000 - 7) * 2 * 8 * 2, 0}));
  EXPECT_EQ(part->resident_in_layer(1, d.model, d.store.rows(), held), held);
}

TEST(KCache, KeepsTheContract) {
  EXPECT_TRUE(large_budget_selects_everything("k_cache", "{}"));
  EXPECT_TRUE(deterministic_and_well_formed("k_cache", "{top_tokens: 5}", 33, 5));
  EXPECT_TRUE(deterministic_and_well_formed("k_cache", "{top_tokens: 1}", 1, 5));
  EXPECT_TRUE(same_log_with_recorded_counts("k_cache", "{top_tokens: 6}", 40, 3));
}

}  // namespace
}  // namespace kvlab::test
