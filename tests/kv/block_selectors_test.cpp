// Selectors of blocks and pages by summaries of their keys: RocketKV's second stage, MoBA.
#include <gtest/gtest.h>

#include <set>

#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

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
    Decode d({4, 2 * group, 2, 8, 16}, 1, 640, 3);
    auto part = make_part<SelectorRegistry>("hybrid_sparse");
    d.prefill(*part);
    for (std::int32_t r = 0; r < 2; ++r) d.store.shrink(r, 189);
    const auto rows = d.decode(*part);
    for (std::int32_t r = 0; r < 2; ++r) {
      // 189 / 40 tokens make one: 8 channels * 3 tokens / 4.725 are 5 channels.
      const auto scores = page_channel_scores(d, r, 3, 189, 5);
      EXPECT_EQ(nth(rows, r), tokens_of(best(scores, 19), 1, 0, 189, 190)) << "group " << group;
    }
    for (const OpCall& c : d.ops.log())
      if (c.op == "signed_pages") {
        EXPECT_EQ(c, (OpCall{.op = "signed_pages",
                             .rows = 2,
                             .tokens = 378,
                             .outputs = 378,
                             .bytes = 2 * (63 * 5 * 2 + 189 * 4),
                             .flops = 2 * 63 * group * (2 * 5 + 4)}));
      }
  }
}

TEST(HybridSparse, WithoutACutItReadsEverything) {
  Decode d({4, 4, 2, 8, 16}, 1, 60, 3);
  auto part = make_part<SelectorRegistry>("hybrid_sparse");
  d.prefill(*part);
  for (std::int32_t t = 0; t < 5; ++t) {
    const auto rows = d.decode(*part);
    EXPECT_EQ(rows[0].size(), static_cast<std::size_t>(d.tokens()));
  }
}

TEST(HybridSparse, AGivenBudgetIsHalfTokens) {
  Decode d({4, 4, 2, 8, 16}, 1, 60, 3);
  auto part = make_part<SelectorRegistry>("hybrid_sparse");
  part->set_budget({20});
  d.prefill(*part);
  for (std::int32_t t = 0; t < 5; ++t) EXPECT_EQ(d.decode(*part)[0].size(), 10U);
}

TEST(HybridSparse, BoundsOfPagesAreBesideTheCache) {
  KvStore store({4, 4, 2, 8, 16}, 1, 0, false);
  store.append(0, nullptr, nullptr, 100, 0);
  EXPECT_EQ(make_part<SelectorRegistry>("hybrid_sparse")->resident({4, 4, 2, 8, 16}, store.rows(), {}).gpu, 2 * 34 * 2 * 8 * 2);
}

TEST(Moba, EachQueryHeadReadsItsBestChunksAndTheStepsOwn) {
  for (const std::int32_t group : {1, 4}) {
    for (const std::int32_t prompt : {63, 64, 65}) {
      Decode d({1, 2 * group, 2, 8, 16}, 1, prompt, 3);
      auto part = make_part<SelectorRegistry>("moba", "{chunk_tokens: 8, top_chunks: 3}");
      d.prefill(*part, 0);
      for (std::int32_t t = 0; t < 10; ++t) {
        const auto rows = d.decode(*part, 0);
        const std::int32_t own = (d.tokens() - 1) / 8;
        for (std::int32_t r = 0; r < 2; ++r) {
          std::set<std::int32_t> chosen;
          for (std::int32_t h = 0; h < group; ++h) {
            std::vector<double> gate;
            for (std::int32_t c = 0; c < own; ++c) gate.push_back(d.mean_logit(r, h, c * 8, c * 8 + 8));
            for (const std::int32_t c : best(gate, 2)) chosen.insert(c);
          }
          EXPECT_EQ(nth(rows, r), tokens_of({chosen.begin(), chosen.end()}, 8, 0, own * 8, d.tokens())) << "row " << r << " step " << t;
        }
      }
    }
  }
}

TEST(Moba, AsManyChunksAsThereAreIsEverything) {
  Decode d({1, 2, 2, 8, 16}, 1, 31, 3);
  auto part = make_part<SelectorRegistry>("moba", "{chunk_tokens: 8, top_chunks: 4}");
  d.prefill(*part, 0);
  EXPECT_EQ(d.decode(*part, 0)[0].size(), 32U);
  EXPECT_EQ(d.decode(*part, 0)[0].size(), 33U - 8);  // a fifth chunk begins; one of four does not match
}

TEST(Moba, ABudgetIsInWholeChunks) {
  Decode d({1, 2, 2, 8, 16}, 1, 99, 3);
  auto part = make_part<SelectorRegistry>("moba", "{chunk_tokens: 8, top_chunks: 4}");
  part->set_budget({47});
  d.prefill(*part, 0);
  EXPECT_EQ(d.decode(*part, 0)[0].size(), 4U * 8 + 4);
}

}  // namespace
}  // namespace kvlab::test
