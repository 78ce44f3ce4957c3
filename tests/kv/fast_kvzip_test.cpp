// Fast KVzip: scores by a small trained gate of the hidden state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/trained_fixture.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kHidden = 48, kHeads = 2, kGroup = 2, kRank = 6, kSinks = 3;

// Random gates with the published shapes.
struct Gates : TrainedFile {
  explicit Gates(std::int32_t layers, std::int32_t heads = kHeads, std::int32_t sinks = kSinks) : TrainedFile(19) {
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::string at = "layers." + std::to_string(l) + ".";
      add(at + "q_proj.weight", {heads * kGroup * kRank, kHidden}), add(at + "q_proj.bias", {heads * kGroup * kRank});
      add(at + "k_proj.weight", {heads * kRank, kHidden}), add(at + "q_norm.weight", {kRank}), add(at + "k_norm.weight", {kRank});
      add(at + "k_base", {heads, 1, sinks, kRank}), add(at + "b", {heads, 1, kGroup});
    }
  }
  // The score of input h [kHidden] for a KV head of a layer, in float64.
  [[nodiscard]] double score(std::int32_t layer, std::int32_t head, const float* h) const {
    const auto value = [&](const std::string& name, std::int32_t line, std::int32_t column) {
      return at("layers." + std::to_string(layer) + "." + name, line, column);
    };
    const auto projected = [&](const std::string& proj, const std::string& norm, std::int32_t row, bool biased) {
      std::vector<double> x;
      double squares = 0;
      for (std::int32_t i = row * kRank; i < (row + 1) * kRank; ++i) {
        x.push_back(biased ? value(proj + ".bias", 0, i) : 0);
        for (std::int32_t c = 0; c < kHidden; ++c) x.back() += value(proj + ".weight", i, c) * static_cast<double>(h[c]);
        squares += x.back() * x.back();
      }
      for (std::int32_t i = 0; i < kRank; ++i) nth(x, i) *= value(norm + ".weight", 0, i) / std::sqrt(squares / kRank + 1e-6);
      return x;
    };
    const std::vector<double> k = projected("k_proj", "k_norm", head, false);
    double mean = 0;
    for (std::int32_t g = head * kGroup; g < (head + 1) * kGroup; ++g) {
      const std::vector<double> q = projected("q_proj", "q_norm", g, true);
      const double own = std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(kRank) + value("b", 0, g);
      double others = 0;
      for (std::int32_t s = head * kSinks; s < (head + 1) * kSinks; ++s) {
        double z = 0;
        for (std::int32_t i = 0; i < kRank; ++i) z += value("k_base", s, i) * nth(q, i);
        others += std::exp(z / std::sqrt(kRank) - own);
      }
      mean += 1 / (1 + others) / kGroup;
    }
    return mean;
  }
};

std::string recipe_with(const std::string& file, const std::string& more = "") {
  return "{recipe: fast_kvzip, scorer: {hidden_gate: {sinks_tokens: 2, recent_tokens: 8}}, weights: " + file + more + "}";
}

// The largest scores of all layers and heads together stay, in addition to 2 first and 8 last tokens per row: 6 rows of 50 tokens on
// average.
TEST(FastKvzip, KeepsTheLargestScoresByHand) {
  const AttentionTrace trace = sample({});  // 3 layers, 2 KV heads, 200 tokens in chunks of 90
  const Gates gates(3);
  std::vector<double> all;
  const auto score = [&](std::int32_t row, std::int32_t t) {
    return gates.score(row / 2, row % 2, nth(trace.layers, row / 2).hidden.data() + t * kHidden);
  };
  for (std::int32_t row = 0; row < 6; ++row)
    for (std::int32_t t = 2; t < 192; ++t) all.push_back(score(row, t));
  std::sort(all.begin(), all.end(), std::greater<>());
  EXPECT_GT(all.back(), 0);
  EXPECT_LT(all.front(), 1);
  const std::size_t count = 6 * 40;
  ASSERT_GT(all[count - 1] - all[count], 1e-6);
  const double least = (all[count - 1] + all[count]) / 2;
  const ReplayResult result = replay_listed(recipe_with(gates.file(), ", budget_tokens: 50"), trace);
  for (std::int32_t row = 0; row < 6; ++row) {
    std::vector<std::int32_t> expected;
    for (std::int32_t t = 0; t < 200; ++t)
      if (t < 2 || t >= 192 || score(row, t) > least) expected.push_back(t);
    EXPECT_EQ(nth(result.kept_of_prompt, row), expected) << row;
  }
}

TEST(FastKvzip, TokensAreJudgedAlikeInAnyChunks) {
  const std::string recipe = recipe_with(Gates(3).file(), ", budget_tokens: 50");
  EXPECT_EQ(replay_listed(recipe, sample({.chunk = 0})).kept_of_prompt, replay_listed(recipe, sample({.chunk = 33})).kept_of_prompt);
}

TEST(FastKvzip, CostsWhatItComputes) { expect_cost_is_replay(sample({}), recipe_of(recipe_with(Gates(3).file(), ", budget_tokens: 50"))); }

// Without a file only costs are known, of the published width and sinks.
TEST(FastKvzip, WeightsAreNeededToCompute) {
  EXPECT_EQ(flops_without_weights("fast_kvzip", "gate_scores"), 2 * 2 * 300 * ((8 + 2) * 16 * 100 + 8 * 16 * 17));
}

TEST(FastKvzip, RefusesFilesOfAnotherModel) {
  const AttentionTrace trace = sample({});
  const auto why = [&](const Gates& gates) { return error_of([&] { replay_listed(recipe_with(gates.file()), trace); }); };
  EXPECT_THAT(why(Gates(4)), HasSubstr("more than the model's 3 layers"));
  EXPECT_THAT(why(Gates(2)), HasSubstr("has no tensor 'layers.2.q_proj.weight'"));
  EXPECT_THAT(why(Gates(3, 4)), HasSubstr("has shape [48, 48], the model needs [24, 48]"));
}

}  // namespace
}  // namespace kvlab::test
