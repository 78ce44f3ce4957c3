// R-KV: attention from the latest queries, less the redundancy of keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "policies/kv/scorer/key_redundancy/key_redundancy.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"
#include "tests/recipes_in.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kTokens = 40, kWindow = 6;
constexpr ModelShape kShape{1, 6, 2, 16};

double dot(const float* a, const float* b, std::int32_t n) {
  double sum = 0;
  for (std::int32_t c = 0; c < n; ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return sum;
}

std::vector<double> softmax(const std::vector<double>& z) {
  std::vector<double> p;
  double sum = 0;
  for (const double x : z) sum += p.emplace_back(std::exp(x));
  for (double& x : p) x /= sum;
  return p;
}

// Mean over the last queries of the softmax over older tokens, maximum over 3 query heads before it and over 5 neighbours after it.
std::vector<double> attention_by_hand(const RandomLayer& layer, const KvRows& kv, std::int32_t r) {
  constexpr std::int32_t kOlder = kTokens - kWindow;
  std::vector<double> mean(kOlder), pooled;
  for (std::int32_t t = kOlder; t < kTokens; ++t) {
    std::vector<double> z(kOlder, -1e30);
    for (std::int32_t i = 0; i < kOlder; ++i)
      for (std::int32_t h = 3 * r; h < 3 * r + 3; ++h)
        nth(z, i) = std::max(nth(z, i), dot(layer.q[0].data() + (t * 6 + h) * 16, kv.key(r, i), 16) / 4);
    const std::vector<double> p = softmax(z);
    for (std::size_t i = 0; i < p.size(); ++i) mean[i] += p[i] / kWindow;
  }
  for (std::int32_t i = 0; i < kOlder; ++i)
    pooled.push_back(*std::max_element(mean.begin() + std::max(0, i - 2), mean.begin() + std::min(kOlder, i + 3)));
  return pooled;
}

std::vector<double> redundancy_by_hand(const KvRows& kv, std::int32_t r, double similar) {
  const std::int32_t n = kv.len[r], d = kv.head_dim;
  std::vector<double> mean(static_cast<std::size_t>(n));
  for (std::int32_t j = 0; j < n; ++j) {
    std::vector<double> line;
    std::size_t newest = 0;
    for (std::int32_t i = 0; i < n; ++i) {
      const double size = std::sqrt(dot(kv.key(r, i), kv.key(r, i), d) * dot(kv.key(r, j), kv.key(r, j), d));
      line.push_back(i == j || size == 0 ? 0 : dot(kv.key(r, i), kv.key(r, j), d) / size);
      if (line.back() > similar) newest = line.size() - 1;
    }
    line[newest] = 0;
    for (std::size_t i = 0; i < line.size(); ++i) mean[i] += line[i] / n;
  }
  return softmax(mean);
}

// The prompt's last chunk is shorter than the window, and the last four tokens are decoded one by one: the ring holds queries of all three.
TEST(RKv, ScoresByHand) {
  RandomLayer layer(kShape, 1, kTokens, 3);
  auto scorer = make_part<ScorerRegistry>("attention_and_redundancy",
                                          "{window_tokens: 6, pool: max, pool_tokens: 5, attention_share: 0.3, similar_cosine: 0.2}");
  const std::int32_t prompt = kTokens - 4;
  std::vector<float> scores(2 * kTokens);
  for (std::int32_t begin = 0, end = prompt - 1; begin < kTokens; begin = end, ++end) {
    layer.seqs[0] = {0, begin, end - begin, prompt, -1};
    LayerStep step = layer.prompt_step(kWindow);
    scorer->observe(step);
    if (end == kTokens) scorer->score(step, scores.data());
  }
  const KvRows kv = layer.store.rows();
  for (std::int32_t r = 0; r < 2; ++r) {
    const std::vector<double> attention = attention_by_hand(layer, kv, r), redundancy = redundancy_by_hand(kv, r, 0.2);
    for (std::size_t i = 0; i < kTokens; ++i) {
      const double expected = (i < attention.size() ? 0.3 * attention[i] : 0) - 0.7 * redundancy[i];
      EXPECT_NEAR(scores[static_cast<std::size_t>(kv.first[r]) + i], expected, 1e-5) << r << " " << i;
    }
  }
}

std::vector<float> redundancy_of(const std::vector<std::vector<float>>& keys) {
  const auto n = static_cast<std::int32_t>(keys.size());
  RandomLayer layer({1, 1, 1, static_cast<std::int32_t>(keys.front().size())}, 1, n, 3);
  const KvRows kv = layer.store.rows();
  for (std::int32_t i = 0; i < n; ++i) std::copy(nth(keys, i).begin(), nth(keys, i).end(), kv.key(0, i));
  std::vector<float> out(keys.size());
  run_cpu(KeyRedundancy{kv, 0.5F, out.data()});
  return out;
}

// The newest of equal keys is the least redundant; a key unlike all others is less redundant than any of the older ones.
TEST(RKv, TheNewestOfSimilarKeysIsSpared) {
  const std::vector<float> out = redundancy_of({{0, 0, 1, 0}, {1, 0, 0, 0}, {2, 0, 0, 0}, {0, 1, 0, 0}, {3, 0, 0, 0}});
  // Columns 1 and 2 keep two entries of 1, less those that lines 1, 2 (their newest is 4) and 4 (its newest is 2) leave out.
  const std::vector<double> expected = softmax({0, 2.0 / 5, 1.0 / 5, 0, 0});
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(out[i], expected[i], 1e-6) << i;
}

// A line without a similar key leaves out token 0, as the code does: the similarity of 0.4 counts for token 1 and not for token 0.
TEST(RKv, WithoutASimilarKeyTokenZeroIsSpared) {
  const std::vector<float> out = redundancy_of({{1, 0}, {0.4F, std::sqrt(0.84F)}});
  const std::vector<double> expected = softmax({0, 0.2});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(out[i], expected[i], 1e-6) << i;
}

// A sequence whose ring is lost has even attention, and is still scored.
TEST(RKv, ForgottenQueriesLeaveEvenAttention) {
  RandomLayer layer(kShape, 1, kTokens, 3);
  auto scorer = make_part<ScorerRegistry>("attention_and_redundancy", "{window_tokens: 6, pool: none, attention_share: 1}");
  LayerStep step = layer.prompt_step(kWindow);
  scorer->observe(step);
  scorer->forget(0);
  const std::vector<float> scores = scored(*scorer, step);
  for (std::size_t i = 0; i < kTokens - kWindow; ++i) EXPECT_NEAR(scores[i], 1.0 / (kTokens - kWindow), 1e-6);
}

TEST(RKv, CutsEveryNDecodeStepsAndKeepsTheWindow) {
  const AttentionTrace trace = sample({});  // 200 tokens and 24 decoded ones
  const std::string recipe = "{recipe: r_kv, budget_tokens: 50, trigger: {every_n: {steps: 10}}}";
  const ReplayResult result = replay_listed(recipe, trace);
  for (const auto& row : result.kept_of_prompt) {
    EXPECT_EQ(row.size(), 50U);
    for (std::int32_t i = 0; i < 8; ++i) EXPECT_EQ(row[row.size() - 8 + static_cast<std::size_t>(i)], 192 + i);
  }
  for (const auto& row : result.kept) {
    EXPECT_EQ(row.size(), 54U);
    for (std::int32_t i = 0; i < 12; ++i) EXPECT_EQ(row[row.size() - 12 + static_cast<std::size_t>(i)], 212 + i);
  }
  expect_cost_is_replay(trace, recipe_of(recipe));
}

}  // namespace
}  // namespace kvlab::test
