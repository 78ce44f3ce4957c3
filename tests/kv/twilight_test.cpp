#include <gtest/gtest.h>

#include <set>

#include "policies/kv/selector/estimate_keys_op.h"
#include "policies/kv/selector/selector.h"
#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

// Estimated keys of all rows, [row][tokens * head_dim].
std::vector<std::vector<float>> estimated(const KvRows& kv, std::int32_t bits) {
  std::vector<std::vector<float>> keys;
  std::vector<float*> to;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) keys.emplace_back(static_cast<std::size_t>(kv.len[r] * kv.head_dim));
  for (auto& k : keys) to.push_back(k.data());
  const std::vector<std::int32_t> from(keys.size(), 0);
  run_cpu(EstimateKeys{kv, bits, false, from.data(), to.data()});
  return keys;
}

// Tokens that the fewest-of-mass rule keeps of `candidates`, in doubles.
std::vector<std::int32_t> pruned(const Decode& d, std::int32_t row, const std::vector<float>& keys,
                                 const std::vector<std::int32_t>& candidates, double mass) {
  std::set<std::int32_t> kept{candidates.back()};
  for (std::int32_t h = 0; h < d.model.group(); ++h) {
    std::vector<std::pair<double, std::int32_t>> weights;
    double sum = 0, so_far = 0;
    for (const std::int32_t i : candidates) {
      weights.emplace_back(-std::exp(d.dot(d.query(row, h), keys.data() + i * d.model.head_dim) / std::sqrt(d.model.head_dim)), i);
      sum -= weights.back().first;
    }
    std::sort(weights.begin(), weights.end());
    for (const auto& [weight, token] : weights) {
      if (so_far >= mass * sum) break;
      kept.insert(token);
      so_far -= weight;
    }
  }
  return {kept.begin(), kept.end()};
}

TEST(EstimateKeys, AreWithinHalfAStepAndOfSixteenLevels) {
  RandomLayer layer({1, 2, 1, 64, 2}, 1, 20, 3);
  const KvRows kv = layer.store.rows();
  const auto keys = estimated(kv, 4);
  for (std::int32_t i = 0; i < 20; ++i) {
    const float* exact = kv.key(0, i);
    const float* coded = keys[0].data() + i * 64;
    const auto [low, high] = std::minmax_element(exact, exact + 64);
    for (std::int32_t c = 0; c < 64; ++c) EXPECT_NEAR(coded[c], exact[c], (*high - *low) / 30 * 1.02F + 0.004F);
    EXPECT_LE(std::set<float>(coded, coded + 64).size(), 16U);
    EXPECT_GT(std::set<float>(coded, coded + 64).size(), 8U);
  }
}

TEST(Twilight, KeepsTheFewestTokensOfTheMass) {
  for (const std::int32_t group : {1, 3})
    for (const double mass : {0.3, 0.85}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, 60, "twilight", "{of: all, mass_frac: " + std::to_string(mass) + ", unpruned_layers: 0}");
      std::size_t kept = 0, held = 0;
      for (std::int32_t t = 0; t < 3; ++t) {
        const auto rows = d.decode();
        std::vector<std::int32_t> all(static_cast<std::size_t>(d.tokens()));
        std::iota(all.begin(), all.end(), 0);
        const auto keys = estimated(d.store.rows(), 4);
        for (std::int32_t r = 0; r < 4; ++r) {
          const auto at = static_cast<std::size_t>(r);
          EXPECT_EQ(rows[at], pruned(d, r, keys[at], all, mass)) << "row " << r << " step " << t;
          kept += rows[at].size(), held += all.size();
        }
      }
      // The union over three heads may be all of one row, not of every row.
      EXPECT_LT(kept, held);
    }
}

TEST(Twilight, PrunesWhatTheOtherSelectorChose) {
  const std::string quest = "{page_tokens: 8, budget_tokens: 32, dense_layers: 0}";
  Decode d({4, 4, 2, 8, 16}, 1, 100, 3), same({4, 4, 2, 8, 16}, 1, 100, 3);
  auto part = make_part<SelectorRegistry>("twilight", "{of: {quest: " + quest + "}, mass_frac: 0.6, unpruned_layers: 2}");
  auto base = make_part<SelectorRegistry>("quest", quest);
  d.prefill(*part), same.prefill(*base);
  for (std::int32_t t = 0; t < 9; ++t) {
    const auto rows = d.decode(*part), candidates = same.decode(*base);
    const auto keys = estimated(d.store.rows(), 4);
    for (std::int32_t r = 0; r < 2; ++r) {
      const auto at = static_cast<std::size_t>(r);
      EXPECT_EQ(rows[at], pruned(d, r, keys[at], candidates[at], 0.6)) << "row " << r << " step " << t;
    }
  }
}

TEST(Twilight, FirstLayersReadAllCandidates) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 100, "twilight",
              "{of: {quest: {page_tokens: 8, budget_tokens: 32, dense_layers: 0}}, unpruned_layers: 2}", {.layer = 1});
  EXPECT_EQ(d.decode()[0].size(), 3U * 8 + 5);
  for (const OpCall& c : d.ops.log()) EXPECT_NE(c.op, "estimate_keys");
}

TEST(Twilight, TheWholeMassIsEveryCandidate) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 40, "twilight", "{of: all, mass_frac: 1}");
  EXPECT_EQ(d.decode()[0].size(), 41U);
}

TEST(Twilight, RefusesASelectorOfLowerTiers) {
  const ModelShape model{4, 4, 2, 8, 16};
  EXPECT_NE(make_part<SelectorRegistry>("twilight", "{of: a2ats}")->refuses(model).find("'a2ats' reads others"), std::string::npos);
  EXPECT_NE(make_part<SelectorRegistry>("twilight", "{of: spe_cache}")->refuses(model), "");
  EXPECT_EQ(make_part<SelectorRegistry>("twilight", "{of: quest}")->refuses(model), "");
}

TEST(Twilight, KeepsTheContract) {
  for (const char* small :
       {"{of: all, mass_frac: 0.7}", "{of: {quest: {page_tokens: 8, budget_tokens: 32, group: union}}, mass_frac: 0.7}"}) {
    EXPECT_TRUE(deterministic_and_well_formed("twilight", small, 65, 5)) << small;
    EXPECT_TRUE(deterministic_and_well_formed("twilight", small, 1, 9)) << small;
    EXPECT_TRUE(same_log_with_recorded_counts("twilight", small, 65, 4)) << small;
  }
  // Codes of 8 channels take 4 bytes, zero and scale 4.
  KvStore store({4, 4, 2, 8, 16}, 1, 0, false);
  store.append(0, nullptr, nullptr, 100, 0);
  auto part = make_part<SelectorRegistry>("twilight", "{of: all}");
  EXPECT_EQ(part->resident_in_layer(2, {4, 4, 2, 8, 16}, store.rows(), {}).gpu, 2 * 100 * 8);
  EXPECT_EQ(part->resident_in_layer(1, {4, 4, 2, 8, 16}, store.rows(), {}).gpu, 0);
}

}  // namespace
}  // namespace kvlab::test
