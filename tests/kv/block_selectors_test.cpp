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
    const OpCall pages{"signed_pages", 2, 378, 378, 2 * (63 * 5 * 2 + 189 * 4), 2 * 63 * group * (2 * 5 + 4)};
    for (const OpCall& c : d.ops.log()) EXPECT_TRUE(c.op != pages.op || c == pages);
  }
}

// Without a cut it reads everything, or the half of a given budget.
TEST(HybridSparse, WithoutACutTheBudgetDecides) {
  for (const std::int32_t budget : {0, 20}) {
    Decode d({4, 4, 2, 8, 16}, 1, 60, 3);
    auto part = make_part<SelectorRegistry>("hybrid_sparse");
    if (budget > 0) part->set_budget({budget});
    d.prefill(*part);
    for (std::int32_t n = 61; n < 66; ++n) EXPECT_EQ(std::ssize(d.decode(*part)[0]), budget > 0 ? 10 : n);
  }
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

TEST(Moba, ReadsFourChunksOrThoseOfABudget) {
  struct Case {
    std::int32_t prompt, budget;
    std::vector<std::size_t> read;  // by each step
  };
  // As many chunks as there are, until a fifth begins: one of four does not match. A budget is in whole chunks.
  for (const Case& c : {Case{31, 0, {32, 33 - 8}}, {99, 47, {4 * 8 + 4}}}) {
    Decode d({1, 2, 2, 8, 16}, 1, c.prompt, 3);
    auto part = make_part<SelectorRegistry>("moba", "{chunk_tokens: 8, top_chunks: 4}");
    if (c.budget > 0) part->set_budget({c.budget});
    d.prefill(*part, 0);
    for (const std::size_t n : c.read) EXPECT_EQ(d.decode(*part, 0)[0].size(), n) << c.prompt;
  }
}

}  // namespace
}  // namespace kvlab::test
