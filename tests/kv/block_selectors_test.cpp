#include <set>

#include "kernels/select/nearest_keys_op.h"
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
  EXPECT_EQ(std::tuple(first.asked_units, first.hit_units), std::tuple(6, 0));
  const auto b = d.decode();
  std::int64_t again = 0;
  for (std::size_t r = 0; r < 2; ++r)
    for (std::size_t i = 0; i < 24; i += 8) again += std::count(a[r].begin(), a[r].begin() + 24, b[r][i]);
  const Traffic second = d.part->take_traffic();
  EXPECT_EQ(std::tuple(second.hit_units, second.fetched_bytes), std::tuple(again, 0));
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {}).gpu, 2 * 9 * 2 * 8 * 2);
}

TEST(WindowSinks, FirstAndNewestTokens) {
  Prefilled d({1, 2, 1, 8, 16}, 1, 9, "window_sinks", "{sink_tokens: 2, recent_tokens: 3}");
  EXPECT_EQ(d.decode()[0], (std::vector<std::int32_t>{0, 1, 7, 8, 9}));
  d.part->set_budget({10});
  EXPECT_EQ(d.decode()[0], (std::vector<std::int32_t>{0, 1, 3, 4, 5, 6, 7, 8, 9, 10}));
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
}

// Selectors of blocks and pages by summaries of their keys: RocketKV's second stage, MoBA.

// Scores of the tokens of whole pages [0, end) of a row, in doubles.
std::vector<double> page_channel_scores(const Decode& d, std::int32_t row, std::int32_t page, std::int32_t end, std::size_t channels) {
  const std::int32_t group = d.model.group();
  std::vector<double> size(8, 0.0), sum(8, 0.0), scores(static_cast<std::size_t>(end), 0.0);
  for (std::int32_t h = 0; h < group; ++h)
    for (std::size_t c = 0; c < 8; ++c) {
      const auto x = static_cast<double>(d.query(row, h)[c]);
      size[c] += std::abs(x), sum[c] += x;
    }
  const std::vector<std::int32_t> chosen = best(size, channels);
  for (std::int32_t h = 0; h < group; ++h) {
    double all = 0, of_chosen = 0, total = 0;
    for (std::size_t c = 0; c < 8; ++c) all += std::abs(static_cast<double>(d.query(row, h)[c]));
    for (const std::int32_t c : chosen) of_chosen += std::abs(static_cast<double>(d.query(row, h)[c]));
    std::vector<double> e;
    for (std::int32_t p = 0; p * page < end; ++p) {
      double z = 0;
      for (const std::int32_t c : chosen) {
        const auto [low, high] = d.channel_range(row, c, p * page, p * page + page);
        z += static_cast<double>(d.query(row, h)[c]) * (nth(sum, c) > 0 ? high : low);
      }
      total += e.emplace_back(std::exp(z / std::sqrt(8 * of_chosen / all)));
    }
    for (std::int32_t i = 0; i < end; ++i) nth(scores, i) += nth(e, i / page) / total / group;
  }
  return scores;
}

// 640 tokens cut to 189 are a compression of 16 in all: 16^0.44 by the cut, 640 / 16 = 40 tokens' worth for a step.
TEST(HybridSparse, ReadsHalfOfTheBudgetThatFollowsFromTheCut) {
  for (const std::int32_t group : {1, 3}) {
    Prefilled d({4, 2 * group, 2, 8, 16}, 1, 640, "hybrid_sparse");
    for (std::int32_t r = 0; r < 2; ++r) d.store.shrink(r, 189);
    // 189 / 40 tokens make one: 8 channels * 3 tokens / 4.725 are 5 channels.
    d.expect_rows(1,
                  [&](std::int32_t r, std::int32_t) { return tokens_of(best(page_channel_scores(d, r, 3, 189, 5), 19), 1, 0, 189, 190); });
    const OpCall pages{"signed_pages", 2, 378, 378, 2 * (63 * 5 * 2 + 189 * 4), 2 * 63 * group * (2 * 5 + 4)};
    for (const OpCall& c : d.ops.log()) EXPECT_TRUE(c.op != pages.op || c == pages);
  }
}

// Without a cut it reads everything, or the half of a given budget.
TEST(HybridSparse, WithoutACutTheBudgetDecides) {
  for (const std::int32_t budget : {0, 20}) {
    Prefilled d({4, 4, 2, 8, 16}, 1, 60, "hybrid_sparse", "{}", {.budget = budget});
    for (std::int32_t n = 61; n < 66; ++n) EXPECT_EQ(std::ssize(d.decode()[0]), budget > 0 ? 10 : n);
  }
}

TEST(Moba, EachQueryHeadReadsItsBestChunksAndTheStepsOwn) {
  for (const std::int32_t group : {1, 4})
    for (const std::int32_t prompt : {63, 64, 65}) {
      Prefilled d({1, 2 * group, 2, 8, 16}, 1, prompt, "moba", "{chunk_tokens: 8, top_chunks: 3}");
      d.expect_rows(10, [&](std::int32_t r, std::int32_t) {
        const std::int32_t own = (d.tokens() - 1) / 8;
        std::set<std::int32_t> chosen;
        for (std::int32_t h = 0; h < group; ++h) {
          std::vector<double> gate;
          for (std::int32_t c = 0; c < own; ++c) gate.push_back(d.mean_logit(r, h, c * 8, c * 8 + 8));
          for (const std::int32_t c : best(gate, 2)) chosen.insert(c);
        }
        return tokens_of({chosen.begin(), chosen.end()}, 8, 0, own * 8, d.tokens());
      });
    }
}

TEST(Moba, ReadsFourChunksOrThoseOfABudget) {
  struct Case {
    std::int32_t prompt, budget;
    std::vector<std::size_t> read;  // by each step
  };
  // As many chunks as there are, until a fifth begins: one of four does not match. A budget is in whole chunks.
  for (const Case& c : {Case{31, 0, {32, 33 - 8}}, {99, 47, {4 * 8 + 4}}}) {
    Prefilled d({1, 2, 2, 8, 16}, 1, c.prompt, "moba", "{chunk_tokens: 8, top_chunks: 4}", {.budget = c.budget});
    for (const std::size_t n : c.read) EXPECT_EQ(d.decode()[0].size(), n) << c.prompt;
  }
}

TEST(LeoAm, TreeFindsTheLeavesOfLargestBound) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t prompt : {79, 80, 81, 130}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "leo_am", "{leaf_tokens: 4, root_tokens: 32, budget_frac: 0.3}");
      d.expect_rows(9, [&](std::int32_t r, std::int32_t) {
        const std::int32_t n = d.tokens(), leaves = (n - 1) / 4, keep = static_cast<std::int32_t>(0.3 * n) / 4;
        std::vector<double> bounds;
        for (std::int32_t p = 0; p < leaves; ++p) bounds.push_back(d.group_bound(r, 4 * p, 4 * p + 4));
        return tokens_of(best(bounds, static_cast<std::size_t>(keep)), 4, 0, leaves * 4, n);
      });
    }
}

TEST(LeoAm, EqualBoundsGoToTheLowerLeaf) {
  std::vector<float> leaves(16 * 2, 1.0F);
  leaves[2 * 9 + 1] = 2.0F;  // leaf 9 is better, all others are alike
  const float q = 1.0F;
  const Queries query{&q, 1, 0};
  const float* bounds = leaves.data();
  const std::int32_t zero = 0, sixteen = 16, three = 3;
  const std::int64_t first[] = {0, 3};
  std::vector<std::int32_t> index(3);
  KvRows kv;
  kv.num_rows = kv.head_dim = 1;
  run_cpu(NearestKeys{kv, &query, &zero, &sixteen, &three, 1, first, index.data(), NearestKeys::Kind::kLeaves, 2, &bounds});
  EXPECT_EQ(index, (std::vector<std::int32_t>{0, 1, 9}));
}

TEST(LeoAm, LooksAtFewNodesOfALongRow) {
  Decode d({4, 2, 2, 8, 16}, 1, 1 << 15, 3, false);
  auto part = make_part<SelectorRegistry>("leo_am", "{budget_frac: 0.01}");
  d.prefill(*part);
  d.ops.clear_log();
  d.decode(*part);
  // For 4096 leaves in each row: 64 roots, and two children in each of 6 levels above 40 leaves.
  for (const OpCall& c : d.ops.log()) EXPECT_TRUE(c.op != "tree_select" || c.tokens == 2 * (64 + 12 * 40)) << c.tokens;
  EXPECT_TRUE(std::any_of(d.ops.log().begin(), d.ops.log().end(), [](const OpCall& c) { return c.op == "tree_select"; }));
}

// 8 hot leaves and the newest one; half in memory; 4 of 16 bits on disk; 128 leaves and their parents' bounds on the GPU.
// Half of the fetched leaves were on disk, with a quarter of the bits.
TEST(LeoAm, ThreeTiers) {
  Prefilled d({4, 2, 1, 8, 16}, 1, 1024, "leo_am", "{budget_frac: 0.0625}");
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {1024 * 32, 0, 0}), (TierBytes{72 * 32 + (256 - 2) * 32, (512 - 72) * 32, 512 * 8}));
  d.decode();
  const Traffic traffic = d.part->take_traffic();
  EXPECT_GT(traffic.fetched_bytes, 0);
  EXPECT_EQ(traffic.disk_bytes, traffic.fetched_bytes / 8);
}

TEST(LeoAm, RefusesRootsOfPartsOfALeaf) {
  EXPECT_THROW(make_part<SelectorRegistry>("leo_am", "{leaf_tokens: 8, root_tokens: 24}"), InputError);
}

}  // namespace
}  // namespace kvlab::test
