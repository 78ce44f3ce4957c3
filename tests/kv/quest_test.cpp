#include <gtest/gtest.h>

#include <set>

#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

TEST(Quest, ReadsThePagesOfLargestBoundAndTheNewest) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t prompt : {63, 64, 65}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "quest", "{page_tokens: 8, budget_tokens: 32}");
      d.expect_rows(10, [&](std::int32_t r, std::int32_t) {
        const std::int32_t newest = (d.tokens() - 1) / 8;
        std::vector<double> bounds;
        for (std::int32_t p = 0; p < newest; ++p) {
          bounds.push_back(d.group_bound(r, p * 8, p * 8 + 8));
          for (std::int32_t h = 0; h < group; ++h)
            for (std::int32_t i = p * 8; i < p * 8 + 8; ++i) EXPECT_GE(bounds.back(), d.logit(r, h, i));
        }
        return tokens_of(best(bounds, 3), 8, 0, newest * 8, d.tokens());
      });
    }
}

TEST(Quest, UnionReadsWhatAnyQueryHeadChose) {
  Prefilled d({4, 8, 2, 8, 16}, 1, 100, "quest", "{page_tokens: 8, budget_tokens: 24, group: union}");
  d.expect_rows(1, [&](std::int32_t r, std::int32_t) {
    std::set<std::int32_t> pages;
    for (std::int32_t h = 0; h < 4; ++h) {
      std::vector<double> bounds;
      for (std::int32_t p = 0; p < 12; ++p) bounds.push_back(d.bound(r, h, p * 8, p * 8 + 8));
      for (const std::int32_t p : best(bounds, 2)) pages.insert(p);
    }
    EXPECT_GT(pages.size(), 2U);
    return tokens_of({pages.begin(), pages.end()}, 8, 0, 96, 101);
  });
}

TEST(Quest, BudgetOfTheWholeRowSelectsEverything) {
  for (const char* group : {"max", "union"}) {
    Prefilled d({4, 8, 2, 8, 16}, 1, 99, "quest", std::string("{page_tokens: 16, budget_tokens: 50, group: ") + group + "}",
                {.budget = 100});
    EXPECT_EQ(d.decode()[0].size(), 100U);
  }
  Prefilled d({4, 8, 2, 8, 16}, 1, 100, "quest", "{page_tokens: 16, budget_tokens: 100}");  // one token more than the budget
  EXPECT_EQ(d.decode()[0].size(), 5U * 16 + 5);
}

TEST(Quest, FirstLayersAreDenseAndKeepNothing) {
  Prefilled d({4, 8, 2, 8, 16}, 1, 99, "quest", "{budget_tokens: 48}", {.layer = 1});
  EXPECT_EQ(d.decode()[0].size(), 100U);
  EXPECT_TRUE(d.ops.log().empty());
}

TEST(Quest, UpdatesOnlyWhatIsNewAndStartsAnewAfterAnEviction) {
  Prefilled d({4, 2, 2, 8, 16}, 1, 64, "quest", "{page_tokens: 8, budget_tokens: 32}");
  ASSERT_EQ(d.ops.log().back().tokens, 128);
  d.ops.clear_log();
  d.decode();
  EXPECT_EQ(d.ops.log().front(), (OpCall{.op = "page_bounds", .rows = 2, .tokens = 2, .outputs = 2, .bytes = 2 * 3 * 16, .flops = 2 * 16}));
  d.store.shrink(0, 40), d.store.shrink(1, 40);
  d.append(1);
  LayerStep s = d.step();
  d.ops.clear_log();
  d.part->update(s);
  EXPECT_EQ(d.ops.log().front().tokens, 82);
}

TEST(Quest, CountsPagesAskedForAndFoundAgain) {
  Prefilled d({4, 2, 2, 8, 16}, 1, 64, "quest", "{page_tokens: 8, budget_tokens: 32}");
  const auto a = d.decode();
  Traffic first = d.part->take_traffic();
  EXPECT_EQ(first.asked_units, 6);
  EXPECT_EQ(first.hit_units, 0);
  const auto b = d.decode();
  std::int64_t again = 0;
  for (std::size_t r = 0; r < 2; ++r)
    for (std::size_t i = 0; i < 24; i += 8) again += std::count(a[r].begin(), a[r].begin() + 24, b[r][i]);
  const Traffic second = d.part->take_traffic();
  EXPECT_EQ(second.hit_units, again);
  EXPECT_EQ(second.fetched_bytes, 0);
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {}).gpu, 2 * 9 * 2 * 8 * 2);
}

TEST(Quest, LogIsTheSameWithoutData) { EXPECT_TRUE(same_log_without_data("quest", "{page_tokens: 8, budget_tokens: 32}", 65, 12)); }

TEST(Selectors, SameTokensTwiceAscendingWithTheNewest) {
  EXPECT_TRUE(deterministic_and_well_formed("quest", "{page_tokens: 8, budget_tokens: 32}", 65, 12));
  EXPECT_TRUE(deterministic_and_well_formed("quest", "{page_tokens: 8, budget_tokens: 32, group: union}", 65, 12));
  EXPECT_TRUE(deterministic_and_well_formed("quest", "{page_tokens: 1, budget_tokens: 1, min_pages: 1}", 1, 4));
  EXPECT_TRUE(deterministic_and_well_formed("window_sinks", "{sink_tokens: 2, recent_tokens: 7}", 5, 9));
  EXPECT_TRUE(deterministic_and_well_formed("top_k_oracle", "{budget_tokens: 12}", 9, 9));
}

TEST(WindowSinks, FirstAndNewestTokens) {
  Prefilled d({1, 2, 1, 8, 16}, 1, 9, "window_sinks", "{sink_tokens: 2, recent_tokens: 3}");
  EXPECT_EQ(d.decode()[0], (std::vector<std::int32_t>{0, 1, 7, 8, 9}));
  d.part->set_budget({10});
  EXPECT_EQ(d.decode()[0], (std::vector<std::int32_t>{0, 1, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_TRUE(same_log_without_data("window_sinks", "{sink_tokens: 2, recent_tokens: 7}", 30, 3));
}

TEST(TopKOracle, TakesTheLargestAttentionOfThisStep) {
  for (const std::int32_t group : {1, 3, 8}) {
    Prefilled d({1, 2 * group, 2, 8, 16}, 1, 40, "top_k_oracle", "{budget_tokens: 11}");
    d.expect_rows(1, [&](std::int32_t r, std::int32_t) {
      std::vector<double> p = d.attention(r);
      p.back() = 2;  // the step's own token is always in
      return best(p, 11);
    });
  }
  EXPECT_TRUE(same_log_without_data("top_k_oracle", "{budget_tokens: 12}", 30, 3));
}

}  // namespace
}  // namespace kvlab::test
