#include <gtest/gtest.h>

#include "policies/kv/selector/product_codes_op.h"
#include "policies/kv/selector/selector.h"
#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

// A center for every token: look-ups are exact.
TEST(PqCache, WithoutLossItReadsTheLargestAttentionBetweenFirstAndNewest) {
  for (const std::int32_t group : {1, 3}) {
    Prefilled d({4, 2 * group, 2, 8, 16}, 2, 60, "pq_cache", "{sink_tokens: 3, read_frac: 0.5, centers: 57}");
    d.expect_rows(3, [&](std::int32_t r, std::int32_t) {
      const std::int32_t tail = d.tokens() - 14;  // a quarter of 57 tokens are newest ones, and as many are found
      std::vector<double> scores(static_cast<std::size_t>(tail - 3), 0.0);
      for (std::int32_t h = 0; h < group; ++h) {
        double total = 0;
        for (std::int32_t i = 3; i < tail; ++i) total += std::exp(d.logit(r, h, i));
        for (std::int32_t i = 3; i < tail; ++i) nth(scores, i - 3) += std::exp(d.logit(r, h, i)) / total;
      }
      std::vector<std::int32_t> found = best(scores, 14);
      for (std::int32_t& i : found) i += 3;
      return tokens_of(found, 1, 3, tail, d.tokens());
    });
  }
}

TEST(ProductCodes, AreTheNearestCentersOfEachPart) {
  RandomLayer layer({1, 2, 1, 8, 8}, 1, 60, 3);
  const KvRows kv = layer.store.rows();
  constexpr std::int32_t kCenters = 6, kWidth = 4;
  std::vector<float> center(2 * kCenters * kWidth);
  std::vector<std::int32_t> code(60 * 2, -1);
  float* c = center.data();
  std::int32_t* out = code.data();
  const std::int32_t begin = 4, end = 60, count = kCenters;
  run_cpu(ProductCodes{kv, {2, kCenters}, ProductCodes::Kind::kTrain, &begin, &end, &count, &c, nullptr, 8});
  run_cpu(ProductCodes{kv, {2, kCenters}, ProductCodes::Kind::kAssign, &begin, &end, &count, &c, &out});
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(code[i], -1);
  double spread = 0, whole = 0;
  for (std::int32_t i = begin; i < end; ++i)
    for (std::int32_t p = 0; p < 2; ++p) {
      const auto distance = [&](std::int32_t to) {
        double sum = 0;
        for (std::int32_t j = 0; j < kWidth; ++j) {
          const auto x = static_cast<double>(kv.key(0, i)[p * kWidth + j]);
          const double y = to < 0 ? 0.0 : static_cast<double>(c[(p * kCenters + to) * kWidth + j]);
          sum += (x - y) * (x - y);
        }
        return sum;
      };
      const double own = distance(nth(code, 2 * i + p));
      for (std::int32_t to = 0; to < kCenters; ++to) EXPECT_LE(own, distance(to) + 1e-4);
      spread += own, whole += distance(-1);
    }
  EXPECT_LT(spread, 0.7 * whole);  // centers are near their keys
}

TEST(PqCache, ResidentIsCodesCentersAndWhatAStepReads) {
  Decode d({4, 2, 1, 8, 16}, 1, 1000, 3);
  auto part = make_part<SelectorRegistry>("pq_cache");
  d.append(1000);
  // 32 + 48 + 48 of 1000 tokens, 2 bytes for 920 of them, 64 centers of 8 channels.
  EXPECT_EQ(part->resident(d.model, d.store.rows(), {32000, 0, 0}), (TierBytes{128 * 32 + 1840 + 64 * 16, 872 * 32, 0}));
}

TEST(PqCache, RefusesPartsThatDoNotDivideAHead) {
  const ModelShape model{4, 2, 1, 8, 16};
  EXPECT_NE(make_part<SelectorRegistry>("pq_cache", "{parts: 3}")->refuses(model).find("8 channels"), std::string::npos);
  EXPECT_EQ(make_part<SelectorRegistry>("pq_cache", "{parts: 4}")->refuses(model), "");
}

// Nothing but first tokens in the prompt: codes begin when there is a token for each center.
TEST(PqCache, AShortPromptIsReadWholeUntilThereAreEnoughTokens) {
  Prefilled d({4, 2, 1, 8, 16}, 1, 3, "pq_cache", "{sink_tokens: 3, read_frac: 0.5, centers: 8}");
  for (std::size_t n = 4; n < 11; ++n) EXPECT_EQ(d.decode()[0].size(), n);
  for (std::int32_t t = 0; t < 7; ++t) EXPECT_EQ(d.decode()[0].size(), 3U + 1 + 1);
}

TEST(PqCache, KeepsTheContract) {
  EXPECT_TRUE(large_budget_selects_everything("pq_cache", "{}"));
  expect_promises("pq_cache", "{sink_tokens: 3, read_frac: 0.3, centers: 16}", {{65, 5}, {1, 24}}, {65, 4});
}

}  // namespace
}  // namespace kvlab::test
