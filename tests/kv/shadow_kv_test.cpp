#include <gtest/gtest.h>

#include <set>

#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

struct Chunks {
  std::vector<std::vector<double>> mean;
  std::vector<double> fit;
};

Chunks chunks_of(const Decode& d, std::int32_t row, std::int32_t chunks, std::int32_t tokens) {
  Chunks all;
  const std::int32_t dim = d.model.head_dim;
  for (std::int32_t c = 0; c < chunks; ++c) {
    std::vector<double> mean(static_cast<std::size_t>(dim), 0.0);
    for (std::int32_t i = c * tokens; i < (c + 1) * tokens; ++i)
      for (std::int32_t x = 0; x < dim; ++x) mean[static_cast<std::size_t>(x)] += static_cast<double>(d.key(row, i)[x]) / tokens;
    double worst = 1, size = 0;
    for (const double x : mean) size += x * x;
    for (std::int32_t i = c * tokens; i < (c + 1) * tokens; ++i) {
      double product = 0;
      for (std::int32_t x = 0; x < dim; ++x) product += mean[static_cast<std::size_t>(x)] * static_cast<double>(d.key(row, i)[x]);
      worst = std::min(worst, product / std::sqrt(size * d.dot(d.key(row, i), d.key(row, i))));
    }
    all.mean.push_back(mean);
    all.fit.push_back(-worst);
  }
  return all;
}

// Tokens by the definition: outliers, then the best of the others by the largest softmax share of any query head.
std::vector<std::int32_t> shadow_by_hand(const Decode& d, std::int32_t row, std::int32_t chunks, std::int32_t outliers, std::int32_t keep) {
  const Chunks all = chunks_of(d, row, chunks, 4);
  const std::vector<std::int32_t> out = best(all.fit, static_cast<std::size_t>(outliers));
  std::set<std::int32_t> read(out.begin(), out.end());
  std::vector<std::int32_t> others;
  for (std::int32_t c = 0; c < chunks; ++c)
    if (read.count(c) == 0) others.push_back(c);
  std::vector<double> score(others.size(), 0.0);
  for (std::int32_t h = 0; h < d.model.group(); ++h) {
    std::vector<double> p;
    for (const std::int32_t c : others) {
      double z = 0;
      for (std::size_t x = 0; x < 8; ++x) z += static_cast<double>(d.query(row, h)[x]) * all.mean[static_cast<std::size_t>(c)][x];
      p.push_back(std::exp(z / std::sqrt(8.0)));
    }
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (std::size_t i = 0; i < p.size(); ++i) score[i] = std::max(score[i], p[i] / sum);
  }
  for (const std::int32_t i : best(score, static_cast<std::size_t>(keep))) read.insert(others[static_cast<std::size_t>(i)]);
  std::vector<std::int32_t> tokens;
  for (const std::int32_t c : read)
    for (std::int32_t i = 4 * c; i < 4 * c + 4; ++i) tokens.push_back(i);
  for (std::int32_t i = chunks * 4; i < d.tokens(); ++i) tokens.push_back(i);
  return tokens;
}

const char* const kSmallShadow = "{chunk_tokens: 4, budget_tokens: 12, outlier_chunks: 3, local_chunks: 2}";

TEST(ShadowKv, OutliersBestChunksAndTheEnd) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    for (const std::int32_t prompt : {63, 64, 65}) {
      Decode d({4, 2 * group, 2, 8, 16}, 2, prompt, 3);
      auto part = make_part<SelectorRegistry>("shadow_kv", kSmallShadow);
      d.prefill(*part);
      std::vector<std::vector<std::int32_t>> expected;
      for (std::int32_t t = 0; t < 3; ++t) {
        const auto rows = d.decode(*part);
        for (std::int32_t r = 0; r < 4; ++r)
          EXPECT_EQ(rows[static_cast<std::size_t>(r)], shadow_by_hand(d, r, prompt / 4 - 2, 3, 3)) << "prompt " << prompt << " row " << r;
      }
    }
  }
}

TEST(ShadowKv, BringsOnlyValuesOfChunksThatTheLastStepDidNotRead) {
  for (const bool keys : {false, true}) {
    Decode d({4, 8, 2, 8, 16}, 1, 64, 3);
    auto part = make_part<SelectorRegistry>("shadow_kv", std::string("{chunk_tokens: 4, budget_tokens: 12, outlier_chunks: 3, ") +
                                                             "local_chunks: 2, keys: " + (keys ? "fetched}" : "low_rank}"));
    d.prefill(*part);
    std::vector<std::vector<std::int32_t>> last(2);
    for (std::int32_t t = 0; t < 4; ++t) {
      const auto rows = d.decode(*part);
      std::int64_t fetched = 0;
      for (std::size_t r = 0; r < 2; ++r) {
        const std::vector<std::int32_t> chunks(rows[r].begin(), rows[r].begin() + 24);
        fetched += newcomers(chunks, last[r]);
        if (t == 0) fetched -= 12;  // outliers never come from the host
        last[r] = chunks;
      }
      const Traffic traffic = part->take_traffic();
      EXPECT_EQ(traffic.fetched_bytes, fetched * (keys ? 2 : 1) * 8 * 2);
      EXPECT_EQ(traffic.asked_units, 6);
    }
    LayerStep same = d.step();
    part->select(same);
    EXPECT_EQ(part->take_traffic().fetched_bytes, 0);
  }
}

TEST(ShadowKv, ValuesLieOnTheHost) {
  Decode d({4, 2, 2, 8, 16}, 1, 1000, 3);
  auto part = make_part<SelectorRegistry>("shadow_kv", kSmallShadow);
  d.prefill(*part);
  // 1000 tokens of 16 + 16 bytes: 12 + 12 + 8 of them read; the values of the others on the host, 250 means and 32 keys beside.
  EXPECT_EQ(part->resident(d.model, d.store.rows(), {2 * 32000, 0, 0}),
            (TierBytes{2 * (32000 - 968 * 16 + 250 * 16 + 32 * 16), 2 * 968 * 16, 0}));
}

TEST(ShadowKv, KeepsTheContract) {
  EXPECT_TRUE(large_budget_selects_everything("shadow_kv", kSmallShadow));
  EXPECT_TRUE(deterministic_and_well_formed("shadow_kv", kSmallShadow, 65, 5));
  for (const std::int32_t prompt : {1, 3, 4, 5, 12, 13}) EXPECT_TRUE(deterministic_and_well_formed("shadow_kv", kSmallShadow, prompt, 3));
  EXPECT_TRUE(same_log_with_recorded_counts("shadow_kv", kSmallShadow, 65, 4));
}

TEST(ShadowKv, BuiltAnewAfterAnEviction) {
  Decode d({4, 2, 2, 8, 16}, 1, 64, 3);
  auto part = make_part<SelectorRegistry>("shadow_kv", kSmallShadow);
  d.prefill(*part);
  d.decode(*part);
  d.store.shrink(0, 40), d.store.shrink(1, 40);
  const auto rows = d.decode(*part);
  EXPECT_EQ(rows[0].back(), 40);
  EXPECT_EQ(rows[0].size(), 6U * 4 + 8 + 1);
}

}  // namespace
}  // namespace kvlab::test
