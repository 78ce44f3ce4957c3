// TriAttention: products with the mean query before RoPE at later positions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "policies/kv/recipe/trained_tensors.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/trained_fixture.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kTokens = 30, kDim = 8, kHalf = 4, kOffsets = 5;
constexpr ModelShape kShape{2, 4, 2, kDim, 24, 2, 1e4};

double frequency(std::int32_t f) { return std::pow(1e4, -f / static_cast<double>(kHalf)); }

// Keys before RoPE are the layer's; those in the rows become the turned ones.
struct TurnedLayer : RandomLayer {
  TurnedLayer() : RandomLayer(kShape, 1, kTokens, 5) {
    const KvRows kv = store.rows();
    for (std::int32_t r = 0; r < 2; ++r) {
      for (std::int32_t i = 0; i < kTokens; ++i)
        for (std::int32_t f = 0; f < kHalf; ++f) {
          const double x = at(k[0], i, 2, r, f), y = at(k[0], i, 2, r, f + kHalf), angle = i * frequency(f);
          kv.key(r, i)[f] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
          kv.key(r, i)[f + kHalf] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
        }
    }
  }
  static double at(const std::vector<float>& x, std::int32_t t, std::int32_t heads, std::int32_t h, std::int32_t c) {
    return static_cast<double>(nth(x, (t * heads + h) * kDim + c));
  }
};

struct Statistics {
  std::vector<float> mean, size;  // [4, kDim], [4, kHalf]
};

Statistics statistics_of(const RandomLayer& layer) {
  Statistics s{std::vector<float>(4 * kDim), std::vector<float>(4 * kHalf)};
  for (std::int32_t h = 0; h < 4; ++h)
    for (std::int32_t t = 0; t < kTokens; ++t) {
      const auto q = [&](std::int32_t c) { return TurnedLayer::at(layer.q[0], t, 4, h, c); };
      for (std::int32_t c = 0; c < kDim; ++c) nth(s.mean, h * kDim + c) += static_cast<float>(q(c) / kTokens);
      for (std::int32_t f = 0; f < kHalf; ++f) nth(s.size, h * kHalf + f) += static_cast<float>(std::hypot(q(f), q(f + kHalf)) / kTokens);
    }
  return s;
}

// The published series, term by term: cosines of the distance from each later position, of keys before RoPE.
double series(const RandomLayer& layer, const Statistics& s, std::int32_t q_head, std::int32_t i) {
  double sum = 0;
  for (std::int32_t j = 0; j < kOffsets; ++j)
    for (std::int32_t f = 0; f < kHalf; ++f) {
      const double mx = nth(s.mean, q_head * kDim + f), my = nth(s.mean, q_head * kDim + f + kHalf);
      const double kx = TurnedLayer::at(layer.k[0], i, 2, q_head / 2, f), ky = TurnedLayer::at(layer.k[0], i, 2, q_head / 2, f + kHalf);
      const double m = std::hypot(mx, my), key = std::hypot(kx, ky), phase = std::atan2(my, mx) - std::atan2(ky, kx);
      const double distance = kTokens - 1 - i + std::pow(2, j);
      sum += m * key * std::cos(frequency(f) * distance + phase) + (double{nth(s.size, q_head * kHalf + f)} - m) * key;
    }
  return sum / kOffsets;
}

std::vector<double> scores_by_hand(const RandomLayer& layer, const Statistics& s) {
  std::vector<double> scores(2 * kTokens, -1e30);
  for (std::int32_t h = 0; h < 4; ++h) {
    std::vector<double> z;
    double mean = 0, squares = 0;
    for (std::int32_t i = 0; i < kTokens; ++i) mean += z.emplace_back(series(layer, s, h, i)) / kTokens;
    for (const double x : z) squares += (x - mean) * (x - mean) / kTokens;
    for (std::size_t i = 0; i < kTokens; ++i) {
      double& score = scores[static_cast<std::size_t>(h / 2 * kTokens) + i];
      score = std::max(score, (z[i] - mean) / std::sqrt(squares));
    }
  }
  return scores;
}

std::vector<float> scores_of(RandomLayer& layer, Scorer& scorer, std::int32_t layer_index) {
  LayerStep step = layer.prompt_step(1);
  step.layer = layer_index;
  step.in.pre_rope_queries = layer.step_queries;
  std::vector<float> scores(static_cast<std::size_t>(step.kv.total()));
  scorer.observe(step);
  scorer.score(step, scores.data());
  return scores;
}

std::string file_of(const std::vector<float>& mean, const std::vector<std::int64_t>& size_shape, const std::vector<float>& size) {
  TrainedFile centers;
  centers.add("q_mean", {2, 4, kDim}, mean), centers.add("q_abs_mean", size_shape, size);
  return centers.file();
}

TEST(TriAttention, IsThePublishedSeries) {
  TurnedLayer layer;
  const auto scorer = make_part<ScorerRegistry>("query_centers", "{offsets: 5}");
  const std::vector<float> scores = scores_of(layer, *scorer, 0);
  const std::vector<double> expected = scores_by_hand(layer, statistics_of(layer));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(scores[i], expected[i], 1e-4) << i;
}

// The prompt comes in two chunks; decoded tokens do not change the statistics.
TEST(TriAttention, AddsUpTheChunksOfAPrompt) {
  TurnedLayer whole, layer;
  const auto once = make_part<ScorerRegistry>("query_centers", "{offsets: 5}"),
             scorer = make_part<ScorerRegistry>("query_centers", "{offsets: 5}");
  const std::vector<float> expected = scores_of(whole, *once, 0);
  const std::vector<Queries> prompt = layer.last_queries(kTokens);
  std::vector<float> scores(2 * kTokens);
  for (const auto& [begin, end] : {std::pair{0, 13}, {13, kTokens}, {kTokens, kTokens + 1}}) {
    layer.seqs[0] = {0, begin, end - begin, kTokens, -1};
    LayerStep step{layer.ops, layer.model, 0, layer.seqs, layer.store.rows(), {}, 7};
    const std::vector<Queries> seen = {{prompt[0].data, std::min(end, kTokens), 0}};
    step.in.pre_rope_queries = seen;
    scorer->observe(step);
    layer.seqs[0] = {0, 0, kTokens, kTokens, -1};
    if (end > kTokens) scorer->score(step, scores.data());
  }
  for (std::size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], expected[i], 1e-4) << i;
}

// Statistics of a file replace those of the prompt, layer by layer.
TEST(TriAttention, TakesCalibratedStatistics) {
  TurnedLayer layer;
  const std::vector<float> mean = RandomLayer::normals(2 * 4 * kDim, 8, 1);
  std::vector<float> size = RandomLayer::normals(2 * 4 * kHalf, 8, 2);
  for (float& x : size) x = 2 + std::fabs(x);
  const auto scorer = make_part<ScorerRegistry>("query_centers", "{offsets: 5}");
  EXPECT_TRUE(scorer->needs().pre_rope_queries);
  scorer->set_weights(TrainedTensors::open(file_of(mean, {2, 4, kHalf}, size)));
  EXPECT_FALSE(scorer->needs().pre_rope_queries);
  EXPECT_EQ(scorer->refuses(kShape), "");
  EXPECT_NE(scorer->refuses({3, 4, 2, kDim}).find("has shape [2, 4, 8], the model needs [3, 4, 8]"), std::string::npos);
  const std::vector<float> scores = scores_of(layer, *scorer, 1);
  const Statistics second{{mean.begin() + 4 * kDim, mean.end()}, {size.begin() + 4 * kHalf, size.end()}};
  const std::vector<double> expected = scores_by_hand(layer, second);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(scores[i], expected[i], 1e-4) << i;
}

TEST(TriAttention, RefusesStatisticsOfAnotherModel) {
  const std::string path = file_of(std::vector<float>(2 * 4 * kDim), {2, 4, kDim}, std::vector<float>(2 * 4 * kDim));
  const auto scorer = make_part<ScorerRegistry>("query_centers");
  scorer->set_weights(TrainedTensors::open(path));
  EXPECT_NE(scorer->refuses(kShape).find("'q_abs_mean'"), std::string::npos) << scorer->refuses(kShape);
}

TEST(TriAttention, CutsEveryNDecodeStepsOrKeepsThePrompt) {
  const AttentionTrace trace = sample({});  // 200 tokens and 24 decoded ones
  const auto kept = [&](const std::string& scorer, std::int32_t budget) {
    const std::string text = "{recipe: triattention, budget_tokens: " + std::to_string(budget) + ", trigger: {every_n: {steps: 10}}, " +
                             "scorer: {query_centers: " + scorer + "}}";
    expect_cost_is_replay(trace, recipe_of(text));
    return replay_listed(text, trace);
  };
  for (const auto& row : kept("{recent_tokens: 5}", 50).kept) {
    ASSERT_EQ(row.size(), 54U);
    for (std::int32_t i = 0; i < 9; ++i) EXPECT_EQ(row[45 + static_cast<std::size_t>(i)], 215 + i);
  }
  for (const auto& row : kept("{keep_prompt: true}", 205).kept) {
    ASSERT_EQ(row.size(), 209U);
    for (std::int32_t i = 0; i < 200; ++i) EXPECT_EQ(nth(row, i), i);
  }
}

}  // namespace
}  // namespace kvlab::test
