#include <gtest/gtest.h>

#include <set>

#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

TEST(RetrievalAttention, WindowsAndTheUnionOfNearestKeys) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    for (const std::int32_t prompt : {11, 12, 13, 14, 90}) {
      Decode d({4, 2 * group, 2, 8, 16}, 2, prompt, 3);
      auto part = make_part<SelectorRegistry>("retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}");
      d.prefill(*part);
      const auto rows = d.decode(*part);
      const std::int32_t n = d.tokens();
      for (std::int32_t r = 0; r < 4; ++r) {
        std::set<std::int32_t> expected;
        for (std::int32_t i = 0; i < n; ++i)
          if (i < 4 || i >= n - 8) expected.insert(i);
        for (std::int32_t h = 0; h < group; ++h) {
          std::vector<double> z;
          for (std::int32_t i = 4; i < n - 8; ++i) z.push_back(d.logit(r, h, i));
          for (const std::int32_t i : best(z, 5)) expected.insert(i + 4);
        }
        EXPECT_EQ(nth(rows, r), std::vector<std::int32_t>(expected.begin(), expected.end())) << prompt;
      }
    }
  }
}

TEST(RetrievalAttention, SearchIsPricedByItsVisits) {
  Decode d({4, 8, 2, 8, 16}, 1, 1000, 3);
  auto part = make_part<SelectorRegistry>("retrieval_attention", "{sink_tokens: 0, recent_tokens: 1, top_tokens: 5, visit_frac: 0.02}");
  d.prefill(*part);
  d.decode(*part);
  // 20 of 1000 keys, for each of 4 query heads of 2 rows: keys of 8 channels read by each head, and lists of 5 written.
  EXPECT_EQ(d.ops.log().front(), (OpCall{.op = "ann_search",
                                         .rows = 2,
                                         .tokens = 40,
                                         .outputs = 40,
                                         .bytes = 2 * (20 * 4 * 8 * 2 + 4 * 20),
                                         .flops = 2 * 2 * 20 * 4 * 8}));
}

TEST(RetrievalAttention, TokensBetweenTheWindowsAreOnTheHost) {
  Decode d({4, 8, 2, 8, 16}, 1, 103, 3);
  d.append(103);
  const auto part = make_part<SelectorRegistry>("retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}");
  EXPECT_EQ(part->resident(d.model, d.store.rows(), {2 * 103 * 32, 0, 0}), (TierBytes{2 * 12 * 32, 2 * 91 * 32, 0}));
}

constexpr const char* kGraph =
    "{sink_tokens: 4, recent_tokens: 8, top_tokens: 10, search: hnsw, links: 8, build_candidates: 64, search_candidates: 64}";

TEST(RetrievalAttention, GraphFindsMostOfTheNearestKeys) {
  Decode d({4, 8, 2, 16, 16}, 2, 700, 3);
  auto part = make_part<SelectorRegistry>("retrieval_attention", kGraph);
  d.prefill(*part);
  double found = 0, all = 0, visited = 0;
  for (std::int32_t t = 0; t < 12; ++t) {
    d.ops.clear_log();
    const auto rows = d.decode(*part);
    for (const OpCall& c : d.ops.log()) visited += c.op == "ann_visits" ? static_cast<double>(c.tokens) : 0;
    for (std::int32_t r = 0; r < 4; ++r) {
      std::set<std::int32_t> nearest;
      for (std::int32_t h = 0; h < 4; ++h) {
        std::vector<double> z;
        for (std::int32_t i = 4; i < d.tokens() - 8; ++i) z.push_back(d.logit(r, h, i));
        for (const std::int32_t i : best(z, 10)) nearest.insert(i + 4);
      }
      const auto& row = nth(rows, r);
      for (const std::int32_t i : nearest) found += std::binary_search(row.begin(), row.end(), i) ? 1 : 0;
      all += static_cast<double>(nearest.size());
      for (const std::int32_t i : row) EXPECT_TRUE(i < d.tokens());
    }
  }
  EXPECT_GT(found / all, 0.85);
  EXPECT_LT(visited, 0.9 * 12 * 16 * 700);  // fewer keys looked at than there are
}

TEST(RetrievalAttention, GraphOfFewKeysFindsAll) {
  Decode d({4, 2, 2, 8, 16}, 1, 40, 3);
  auto part = make_part<SelectorRegistry>("retrieval_attention", kGraph);
  auto exact = make_part<SelectorRegistry>("retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 10}");
  d.prefill(*part);
  for (std::int32_t t = 0; t < 8; ++t) {
    const auto rows = d.decode(*part);
    LayerStep same = d.step();
    const Selection chosen = exact->select(same);
    for (std::size_t r = 0; r < 2; ++r)
      EXPECT_EQ(rows[r], std::vector<std::int32_t>(chosen.index + chosen.index_first[r], chosen.index + chosen.index_first[r + 1]));
  }
}

TEST(RetrievalAttention, GraphKeepsTheContract) { expect_promises("retrieval_attention", kGraph, {{333, 5}, {1, 30}}, {300, 4}); }

TEST(RetrievalAttention, KeepsTheContract) {
  EXPECT_TRUE(large_budget_selects_everything("retrieval_attention", "{}"));
  EXPECT_TRUE(large_budget_selects_everything("retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}"));
  EXPECT_TRUE(deterministic_and_well_formed("retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}", 33, 5));
  EXPECT_TRUE(deterministic_and_well_formed("retrieval_attention", "{sink_tokens: 0, recent_tokens: 1, top_tokens: 1}", 1, 5));
  EXPECT_TRUE(same_log_with_recorded_counts("retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}", 65, 4));
}

}  // namespace
}  // namespace kvlab::test
