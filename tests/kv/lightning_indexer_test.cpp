// DeepSeek sparse attention's indexer.
#include <gtest/gtest.h>

#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

// sum over all query heads of a sequence of f(logit), for each older or new token.
template <class F>
std::vector<double> sums(Decode& d, std::int32_t sequence, F&& f) {
  std::vector<double> all(static_cast<std::size_t>(d.tokens()), 0.0);
  for (std::int32_t i = 0; i < d.tokens(); ++i)
    for (std::int32_t r = sequence * d.model.kv_heads; r < (sequence + 1) * d.model.kv_heads; ++r)
      for (std::int32_t h = 0; h < d.model.group(); ++h) nth(all, i) += f(d.logit(r, h, i));
  return all;
}

// One choice for all heads: the largest sums of rectified products, but for those that 8 bits cannot tell apart.
TEST(LightningIndexer, AllHeadsReadTheLargestRectifiedProducts) {
  for (const std::int32_t head_dim : {32, 48}) {  // the rotation is over 32 and 16 channels
    Prefilled d({4, 8, 2, head_dim, 64}, 2, 120, "lightning_indexer", "{top_tokens: 20}", {.seed = 5});
    for (std::int32_t t = 0; t < 3; ++t) {
      const auto rows = d.decode();
      for (std::int32_t s = 0; s < 2; ++s) {
        const auto& chosen = nth(rows, 2 * s);
        ASSERT_EQ(chosen.size(), 20U);
        EXPECT_EQ(chosen, nth(rows, 2 * s + 1));
        const std::vector<double> exact = sums(d, s, [](double z) { return std::max(0.0, z); });
        const std::vector<std::int32_t> top = best(exact, 20);
        double least = 1e30;
        for (const std::int32_t i : top) least = std::min(least, nth(exact, i));
        for (const std::int32_t i : chosen) EXPECT_GT(nth(exact, i), 0.88 * least);
        for (const std::int32_t i : top) EXPECT_TRUE(std::binary_search(chosen.begin(), chosen.end(), i) || nth(exact, i) < 1.12 * least);
        const std::vector<std::int32_t> plain = best(sums(d, s, [](double z) { return z; }), 20);
        EXPECT_NE(chosen, plain) << "a choice by products that are not rectified is another one";
      }
    }
  }
}

TEST(LightningIndexer, ReadsAllUpToItsBudget) {
  Prefilled d({4, 8, 2, 32, 64}, 1, 19, "lightning_indexer", "{top_tokens: 20}", {.seed = 5});
  EXPECT_EQ(d.decode()[0].size(), 20U);
  EXPECT_EQ(d.decode()[0].size(), 20U);
  EXPECT_EQ(d.decode()[1].size(), 20U);
}

TEST(LightningIndexer, CodesEachKeyOnce) {
  Prefilled d({4, 8, 2, 32, 64}, 1, 100, "lightning_indexer", "{top_tokens: 20}", {.seed = 5});
  d.decode();
  d.decode();
  std::vector<std::int64_t> coded, scored;
  for (const OpCall& c : d.ops.log()) {
    if (c.op == "index_keys") coded.push_back(c.tokens);
    if (c.op == "index_scores") scored.push_back(c.bytes);
  }
  EXPECT_EQ(coded, (std::vector<std::int64_t>{200, 2, 2}));
  EXPECT_EQ(scored, (std::vector<std::int64_t>{2 * 101 * 36 + 4 * 101 + 8 * 32 * 2, 2 * 102 * 36 + 4 * 102 + 8 * 32 * 2}));
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {}).gpu, 2 * 102 * 36);
}

}  // namespace
}  // namespace kvlab::test
