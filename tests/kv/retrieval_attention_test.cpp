#include <gtest/gtest.h>

#include <set>

#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

constexpr const char* kNearest = "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}";

// Tokens outside the windows that some query head of the row has among its `top` nearest.
std::set<std::int32_t> nearest_keys(const Decode& d, std::int32_t row, std::size_t top) {
  std::set<std::int32_t> nearest;
  for (std::int32_t h = 0; h < d.model.group(); ++h) {
    std::vector<double> z;
    for (std::int32_t i = 4; i < d.tokens() - 8; ++i) z.push_back(d.logit(row, h, i));
    for (const std::int32_t i : best(z, top)) nearest.insert(i + 4);
  }
  return nearest;
}

TEST(RetrievalAttention, WindowsAndTheUnionOfNearestKeys) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t prompt : {11, 12, 13, 14, 90}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "retrieval_attention", kNearest);
      d.expect_rows(1, [&](std::int32_t r, std::int32_t) {
        std::set<std::int32_t> expected = nearest_keys(d, r, 5);
        for (std::int32_t i = 0; i < d.tokens(); ++i)
          if (i < 4 || i >= d.tokens() - 8) expected.insert(i);
        return std::vector<std::int32_t>(expected.begin(), expected.end());
      });
    }
}

TEST(RetrievalAttention, SearchIsPricedByItsVisits) {
  Prefilled d({4, 8, 2, 8, 16}, 1, 1000, "retrieval_attention", "{sink_tokens: 0, recent_tokens: 1, top_tokens: 5, visit_frac: 0.02}");
  d.decode();
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
  const auto part = make_part<SelectorRegistry>("retrieval_attention", kNearest);
  EXPECT_EQ(part->resident(d.model, d.store.rows(), {2 * 103 * 32, 0, 0}), (TierBytes{2 * 12 * 32, 2 * 91 * 32, 0}));
}

constexpr const char* kGraph =
    "{sink_tokens: 4, recent_tokens: 8, top_tokens: 10, search: hnsw, links: 8, build_candidates: 64, search_candidates: 64}";

TEST(RetrievalAttention, GraphFindsMostOfTheNearestKeys) {
  Prefilled d({4, 8, 2, 16, 16}, 2, 700, "retrieval_attention", kGraph);
  double found = 0, all = 0, visited = 0;
  for (std::int32_t t = 0; t < 12; ++t) {
    d.ops.clear_log();
    const auto rows = d.decode();
    for (const OpCall& c : d.ops.log()) visited += c.op == "ann_visits" ? static_cast<double>(c.tokens) : 0;
    for (std::int32_t r = 0; r < 4; ++r) {
      const std::set<std::int32_t> nearest = nearest_keys(d, r, 10);
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

TEST(RetrievalAttention, KeepsTheContract) {
  expect_promises("retrieval_attention", kGraph, {{333, 5}, {1, 30}}, {300, 4});
  expect_promises("retrieval_attention", kNearest, {{33, 5}}, {65, 4});
  EXPECT_TRUE(large_budget_selects_everything("retrieval_attention", "{}"));
  EXPECT_TRUE(deterministic_and_well_formed("retrieval_attention", "{sink_tokens: 0, recent_tokens: 1, top_tokens: 1}", 1, 5));
}

}  // namespace
}  // namespace kvlab::test
