#include "policies/kv/recipe/trained_tensors.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

// The layer's K or V of a token and KV head as a vector of double.
std::vector<double> vector_of(const std::vector<std::vector<float>>& data, const ModelShape& m, std::int32_t sequence, std::int32_t i,
                              std::int32_t head) {
  const float* x = nth(data, sequence).data() + (i * m.kv_heads + head) * m.head_dim;
  return {x, x + m.head_dim};
}

// Calls check(row, sequence, head, scores of the row).
template <class F>
void for_each_row(RandomLayer& layer, const std::vector<float>& scores, F&& check) {
  const KvRows kv = layer.store.rows();
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    check(kv.sequence(r), r % kv.kv_heads, std::vector<double>(scores.begin() + kv.first[r], scores.begin() + kv.first[r + 1]));
}

TEST(KeyNorm, IsMinusTheNormOfEachHeadOrOfAllHeads) {
  RandomLayer layer({1, 6, 2, 20, 16}, 2, 65, 5);
  for (const bool shared : {false, true})
    for_each_row(layer, scored(layer, "key_norm", shared ? "{heads: shared}" : "{}"),
                 [&](std::int32_t s, std::int32_t head, const std::vector<double>& scores) {
                   for (std::int32_t i = 0; i < 65; ++i) {
                     double squares = 0;
                     for (std::int32_t h = 0; h < 2; ++h) {
                       const std::vector<double> k = vector_of(layer.k, layer.model, s, i, h);
                       if (shared || h == head) squares += dot(k, k);
                     }
                     EXPECT_NEAR(nth(scores, i), -std::sqrt(squares), 1e-5);
                   }
                 });
}

TEST(KeyDiversity, IsMinusTheCosineWithTheMeanDirection) {
  RandomLayer layer({1, 2, 2, 24, 16}, 2, 63, 6);
  for_each_row(layer, scored(layer, "key_diversity"), [&](std::int32_t s, std::int32_t head, const std::vector<double>& scores) {
    std::vector<double> anchor(24, 0.0);
    for (std::int32_t i = 0; i < 63; ++i) {
      const std::vector<double> k = vector_of(layer.k, layer.model, s, i, head);
      for (std::size_t c = 0; c < anchor.size(); ++c) anchor[c] += k[c] / std::sqrt(dot(k, k)) / 63;
    }
    for (std::int32_t i = 0; i < 63; ++i) {
      const std::vector<double> k = vector_of(layer.k, layer.model, s, i, head);
      EXPECT_NEAR(nth(scores, i), -dot(k, anchor) / std::sqrt(dot(k, k) * dot(anchor, anchor)), 2e-6);
    }
  });
}

// LagKV's score of one of K and V for token i of the partition that begins at `begin`: before the softmax.
double spread(const RandomLayer& layer, const std::vector<std::vector<float>>& data, std::int32_t s, std::int32_t head, std::int32_t begin,
              std::int32_t lag, std::int32_t i) {
  std::vector<double> relative;
  for (std::size_t c = 0; c < static_cast<std::size_t>(layer.model.head_dim); ++c) {
    double low = 1e9, high = -1e9;
    for (std::int32_t j = begin + lag; j < begin + 2 * lag; ++j) {
      const double x = vector_of(data, layer.model, s, j, head)[c];
      low = std::min(low, x), high = std::max(high, x);
    }
    relative.push_back((vector_of(data, layer.model, s, i, head)[c] - low) / (high - low));
  }
  const double mean = std::accumulate(relative.begin(), relative.end(), 0.0) / static_cast<double>(relative.size());
  double squares = 0;
  for (const double x : relative) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / static_cast<double>(relative.size() - 1));
}

TEST(LagRelative, ScoresPartitionsByTheNextOne) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 35, 9);  // 3 sinks, then 4 partitions of 7 and 4 more: 3 partitions scored
  const auto scores = scored(layer, "lag_relative", "{sinks_tokens: 3, lag_tokens: 7, ranks: false, epsilon: 0}");
  for (std::int32_t begin = 3; begin < 24; begin += 7) {
    std::vector<double> expected(7, 0.0);
    for (const auto* data : {&layer.k, &layer.v}) {
      double sum = 0;
      std::vector<double> e;
      for (std::int32_t i = begin; i < begin + 7; ++i) e.push_back(std::exp(spread(layer, *data, 0, 0, begin, 7, i))), sum += e.back();
      for (std::size_t i = 0; i < 7; ++i) expected[i] += e[i] / sum / 2;
    }
    for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(scores[static_cast<std::size_t>(begin) + i], expected[i], 1e-6) << begin << " " << i;
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_GT(scores[i], scores[34]);
  for (std::size_t i = 24; i < 35; ++i) EXPECT_GT(scores[i], i == 24 ? 0.99F : scores[i - 1]) << "the tail stays, newest first";
}

TEST(LagRelative, RanksGiveEveryPartitionTheSameValues) {
  RandomLayer layer({1, 2, 2, 8, 16}, 1, 4 + 5 * 8 + 7, 9);
  const auto raw = scored(layer, "lag_relative", "{sinks_tokens: 4, lag_tokens: 8, ranks: false}");
  const auto ranks = scored(layer, "lag_relative", "{sinks_tokens: 4, lag_tokens: 8}");
  for (std::int32_t i = 4; i < 36; ++i) {
    const auto begin = raw.begin() + 4 + (i - 4) / 8 * 8;
    const auto lower = std::count_if(begin, begin + 8, [&](float x) { return x < nth(raw, i); });
    EXPECT_FLOAT_EQ(nth(ranks, i), static_cast<float>(lower) / 8);
  }
}

TEST(LagRelative, ShortRowsKeepTheMostRecent) {
  for (const std::int32_t n : {0, 1, 3, 4, 19}) {
    RandomLayer layer({1, 2, 1, 8, 16}, 1, n, 9);
    const auto scores = scored(layer, "lag_relative", "{sinks_tokens: 4, lag_tokens: 8}");
    for (std::size_t i = 5; i < scores.size(); ++i) EXPECT_GT(scores[i], scores[i - 1]);
  }
}

TEST(LagRelative, EqualTailsTieWithTheSinks) {
  RandomLayer scored({1, 2, 1, 8, 16}, 1, 4 + 3 * 8 + 2, 9), brief({1, 2, 1, 8, 16}, 1, 4 + 15, 9);
  const auto a = test::scored(scored, "lag_relative", "{sinks_tokens: 4, lag_tokens: 8, tail: equal}");
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i] == 1.0F, i < 4 || i >= 20) << i;
  const auto b = test::scored(brief, "lag_relative", "{sinks_tokens: 4, lag_tokens: 8, tail: equal}");
  for (std::size_t i = 5; i < b.size(); ++i) EXPECT_GT(b[i], b[i - 1]) << "too short to score";
  EXPECT_GT(b[0], b.back());
}

TEST(LagRelative, WhatWasSelectedIsNotScoredAgain) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 4 + 3 * 8, 9);
  auto scorer = make_part<ScorerRegistry>("lag_relative", "{sinks_tokens: 4, lag_tokens: 8}");
  LayerStep step = layer.prompt_step(0);
  std::vector<float> scores = scored(*scorer, step);
  std::int32_t keep = 4 + 8 + 8;  // half of two partitions, the last one whole
  scorer->refine(step, &keep, scores.data());
  layer.store.shrink(0, keep);
  LayerStep again = layer.prompt_step(0);
  scorer->score(again, scores.data());
  for (std::size_t i = 0; i < 12; ++i) EXPECT_GT(scores[i], 2.0F) << "settled " << i;
  scorer->forget(0);
  scorer->score(again, scores.data());
  EXPECT_LT(scores[11], 1.0F) << "a new sequence has nothing settled: two partitions, one scored";
}

TEST(ValueKeyNorm, PromptTokensOneByOneDecodedOnesByPage) {
  RandomLayer layer({1, 2, 2, 8, 16}, 1, 11, 12);
  const auto ratio = [&](std::int32_t i) {
    double sum = 0;
    for (std::int32_t h = 0; h < 2; ++h) {
      const std::vector<double> k = vector_of(layer.k, layer.model, 0, i, h), v = vector_of(layer.v, layer.model, 0, i, h);
      sum += std::sqrt(dot(v, v) / dot(k, k)) / 2;
    }
    return sum;
  };
  auto scores = scored(layer, "value_key_norm", "{page_tokens: 4}");
  for (std::int32_t i = 0; i < 22; ++i) EXPECT_NEAR(nth(scores, i), ratio(i % 11), 1e-5);
  layer.seqs[0] = {0, 10, 1, 10, -1};
  scores = scored(layer, "value_key_norm", "{page_tokens: 4}");
  for (std::int32_t i = 0; i < 8; ++i) {
    const std::int32_t page = i / 4 * 4;
    EXPECT_NEAR(nth(scores, i), (ratio(page) + ratio(page + 1) + ratio(page + 2) + ratio(page + 3)) / 4, 1e-5);
  }
  for (std::size_t i = 8; i < 11; ++i) EXPECT_TRUE(std::isinf(scores[i])) << "the newest page stays";
}

TEST(Cur, MultipliesSharesWithinWindows) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 10, 13);
  const auto scores = scored(layer, "cur", "{window_tokens: 4}");
  std::vector<double> expected;
  for (std::int32_t i = 0; i < 10; ++i) {
    double product = 1;
    for (const auto* data : {&layer.k, &layer.v}) {
      const auto squares = [&](std::int32_t token) {
        const auto x = vector_of(*data, layer.model, 0, token, 0);
        return dot(x, x);
      };
      double window = 0;
      for (std::int32_t j = i / 4 * 4; j < std::min(10, i / 4 * 4 + 4); ++j) window += squares(j);
      product *= squares(i) / window;
    }
    expected.push_back(product);
  }
  const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(scores[i], expected[i] / sum, 1e-6);
}

TEST(RedundancyAndValueNorm, NewestAndLeastRedundantKeysAreForced) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 16, 14);
  auto scorer = make_part<ScorerRegistry>("redundancy_and_value_norm");
  LayerStep step = layer.prompt_step(0);
  std::vector<float> scores = scored(*scorer, step);
  std::int32_t keep = 12;  // six by redundancy, of which the newest four are the reference
  scorer->refine(step, &keep, scores.data());
  std::vector<std::pair<double, std::size_t>> likeness;
  for (std::int32_t i = 0; i < 12; ++i) {
    const auto k = vector_of(layer.k, layer.model, 0, i, 0);
    double sum = 0;
    for (std::int32_t j = 12; j < 16; ++j) {
      const auto newest = vector_of(layer.k, layer.model, 0, j, 0);
      sum += dot(k, newest) / std::sqrt(dot(k, k) * dot(newest, newest));
    }
    likeness.emplace_back(sum, static_cast<std::size_t>(i));
  }
  std::sort(likeness.begin(), likeness.end());
  for (std::size_t i = 0; i < 16; ++i) {
    const bool forced = i >= 12 || i == likeness[0].second || i == likeness[1].second;
    EXPECT_EQ(std::isinf(scores[i]), forced) << i;
  }
}

// TriAttention: products with the mean query before RoPE at later positions.

constexpr std::int32_t kTurnedTokens = 30, kDim = 8, kHalf = 4, kOffsets = 5;
constexpr ModelShape kTurnedShape{2, 4, 2, kDim, 24, 2, 1e4};

double frequency(std::int32_t f) { return std::pow(1e4, -f / static_cast<double>(kHalf)); }

// Keys before RoPE are the layer's; those in the rows become the turned ones.
struct TurnedLayer : RandomLayer {
  TurnedLayer() : RandomLayer(kTurnedShape, 1, kTurnedTokens, 5) {
    const KvRows kv = store.rows();
    const std::vector<float> keys = turned(k[0], model.rope, range(0, kTurnedTokens), 2, kDim);
    for (std::int32_t r = 0; r < 2; ++r)
      for (std::int32_t i = 0; i < kTurnedTokens; ++i) std::copy_n(&nth(keys, (i * 2 + r) * kDim), kDim, kv.key(r, i));
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
    for (std::int32_t t = 0; t < kTurnedTokens; ++t) {
      const auto q = [&](std::int32_t c) { return TurnedLayer::at(layer.q[0], t, 4, h, c); };
      for (std::int32_t c = 0; c < kDim; ++c) nth(s.mean, h * kDim + c) += static_cast<float>(q(c) / kTurnedTokens);
      for (std::int32_t f = 0; f < kHalf; ++f)
        nth(s.size, h * kHalf + f) += static_cast<float>(std::hypot(q(f), q(f + kHalf)) / kTurnedTokens);
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
      const double distance = kTurnedTokens - 1 - i + std::pow(2, j);
      sum += m * key * std::cos(frequency(f) * distance + phase) + (double{nth(s.size, q_head * kHalf + f)} - m) * key;
    }
  return sum / kOffsets;
}

std::vector<double> scores_by_hand(const RandomLayer& layer, const Statistics& s) {
  std::vector<double> scores(2 * kTurnedTokens, -1e30);
  for (std::int32_t h = 0; h < 4; ++h) {
    std::vector<double> z;
    double mean = 0, squares = 0;
    for (std::int32_t i = 0; i < kTurnedTokens; ++i) mean += z.emplace_back(series(layer, s, h, i)) / kTurnedTokens;
    for (const double x : z) squares += (x - mean) * (x - mean) / kTurnedTokens;
    for (std::size_t i = 0; i < kTurnedTokens; ++i) {
      double& score = scores[static_cast<std::size_t>(h / 2 * kTurnedTokens) + i];
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
  const std::vector<Queries> prompt = layer.last_queries(kTurnedTokens);
  std::vector<float> scores(2 * kTurnedTokens);
  for (const auto& [begin, end] : {std::pair{0, 13}, {13, kTurnedTokens}, {kTurnedTokens, kTurnedTokens + 1}}) {
    layer.seqs[0] = {0, begin, end - begin, kTurnedTokens, -1};
    LayerStep step{layer.ops, layer.model, 0, layer.seqs, layer.store.rows(), {}, 7};
    const std::vector<Queries> seen = {{prompt[0].data, std::min(end, kTurnedTokens), 0}};
    step.in.pre_rope_queries = seen;
    scorer->observe(step);
    layer.seqs[0] = {0, 0, kTurnedTokens, kTurnedTokens, -1};
    if (end > kTurnedTokens) scorer->score(step, scores.data());
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
  EXPECT_EQ(scorer->refuses(kTurnedShape), "");
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
  EXPECT_NE(scorer->refuses(kTurnedShape).find("'q_abs_mean'"), std::string::npos) << scorer->refuses(kTurnedShape);
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
