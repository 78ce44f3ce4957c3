#include "policies/kv/scorer/key_redundancy/key_redundancy.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

// For a prompt of n tokens in one step: rows of the queries that see token i, in order.
std::vector<double> column(const RandomLayer& layer, std::int32_t head, std::int32_t i, std::int32_t n) {
  std::vector<double> c;
  for (std::int32_t t = i; t < n; ++t) c.push_back(nth(plain_row(layer, 0, head, t), i));
  return c;
}

TEST(LowAttentionCount, CountsQueriesBelowAnEvenShare) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 1, 65, 3, 2);
    auto scorer = make_part<ScorerRegistry>("low_attention_count", "{window_tokens: 33}");
    ASSERT_EQ(scorer->num_words(), 2);
    const std::vector<float> scores = scores_after_prompt(layer, *scorer);
    for (std::int32_t i = 0; i < 65; ++i) {
      int low = 0;
      for (std::int32_t t = std::max(i, 32); t < 65; ++t) low += int{nth(plain_row(layer, 0, 1, t), i) < 1.0 / (t + 1)};
      EXPECT_EQ(nth(scores, 65 + i), static_cast<float>(-low)) << i;
    }
  }
}

// One decode step after tokens were evicted: the even share is 1 / 11 held tokens for Scissorhands, 1 / 51 of the sequence for CORM.
TEST(AttentionRings, EvenShareOfHeldTokensOrOfTheSequence) {
  const auto ones = [](const std::string& name, const std::string& parameters) {
    RandomLayer layer({1, 2, 1, 8, 16}, 1, 11, 3, 1);
    auto scorer = make_part<ScorerRegistry>(name, parameters);
    layer.seqs[0] = {0, 50, 1, 40, -1};
    KvRows kv = layer.store.rows();
    for (std::int32_t i = 0; i < 11; ++i) kv.position[kv.slot(0, i)] = 5 * i;
    const std::vector<Queries> query = {{layer.q[0].data() + 10 * 16, 1, 50}};
    LayerStep step{layer.ops, layer.model, 0, layer.seqs, kv, {}, 7};
    step.in.step = query;
    scorer->observe(step);
    int high = 0;
    for (std::int32_t i = 0; i < 11; ++i) high += static_cast<int>(kv.word(0, 0, i) >> (50 % 20) & 1U);
    return high;
  };
  RandomLayer same({1, 2, 1, 8, 16}, 1, 11, 3);
  const std::vector<double> p = plain_row(same, 0, 0, 10);
  const auto above = [&](double share) { return std::count_if(p.begin(), p.end(), [&](double x) { return x >= share; }); };
  ASSERT_NE(above(1.0 / 11), above(1.0 / 51));
  EXPECT_EQ(ones("low_attention_count", "{window_tokens: 20}"), above(1.0 / 11));
  EXPECT_EQ(ones("attention_recency_ring", "{window_tokens: 20}"), above(1.0 / 51));
  EXPECT_EQ(ones("attention_recency_ring", "{window_tokens: 20, even_share_of: visible}"), above(1.0 / 11));
}

std::vector<float> mean_spread_scores(std::int32_t keep) {
  RandomLayer layer({1, 6, 2, 8, 16}, 1, 41, 3, 2);
  auto scorer = make_part<ScorerRegistry>("attention_mean_spread", "{sinks_tokens: 2, newest_tokens: 5, spread_frac: 0.25}");
  return scores_after_prompt(layer, *scorer, 1, &keep);
}

// Step by step as EasyKV does it: among the tokens of smallest spread the one of smallest mean goes.
TEST(AttentionMeanSpread, EvictsTheSmallestMeanAmongSmallSpreads) {
  const RandomLayer layer({1, 6, 2, 8, 16}, 1, 41, 3, 2);
  const std::vector<float> scores = mean_spread_scores(40);
  for (std::int32_t head = 0; head < 2; ++head) {
    std::vector<double> mean, spread;
    for (std::int32_t i = 0; i < 41; ++i) {
      const std::vector<double> c = column(layer, head, i, 41);
      double sum = 0, square = 0;
      for (const double x : c) sum += x, square += x * x;
      const double mu = sum / static_cast<double>(c.size());
      mean.push_back(mu);
      spread.push_back(i < 2 || i >= 36 ? 1e9 : std::sqrt(std::max(0.0, square / static_cast<double>(c.size()) - mu * mu)));
    }
    std::vector<std::size_t> order(41);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return spread[a] < spread[b]; });
    order.resize(40 - 10 - 2);
    const std::size_t victim =
        *std::min_element(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return mean[a] < mean[b]; });
    const auto row = scores.begin() + head * 41;
    EXPECT_EQ(static_cast<std::size_t>(std::min_element(row, row + 41) - row), victim) << head;
    EXPECT_EQ(std::count_if(row, row + 41, [](float x) { return std::isinf(x); }), 13);
  }
}

// 2 sinks and a quarter of the budget are the reserve. A budget of 20 has fewer candidates than its 21 victims: the reserve alone is held.
TEST(AttentionMeanSpread, HoldsTheReserveAndWhatIsNoCandidate) {
  for (const auto& [keep, held] : {std::pair{41, 0}, {40, 13}, {30, 20}, {20, 7}, {3, 2}, {1, 1}, {0, 0}}) {
    const std::vector<float> scores = mean_spread_scores(keep);
    EXPECT_EQ(std::count_if(scores.begin(), scores.begin() + 41, [](float x) { return std::isinf(x); }), held) << keep;
  }
}

TEST(TopKHits, LastOrCount) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 30, 3, 2);
  const std::vector<float> last = scores_after_prompt(layer, *make_part<ScorerRegistry>("topk_hits", "{top_tokens: 1}"));
  RandomLayer same({1, 4, 2, 8, 16}, 1, 30, 3, 2);
  const std::vector<float> count = scores_after_prompt(same, *make_part<ScorerRegistry>("topk_hits", "{top_tokens: 1, rank_by: count}"));
  float hits = 0;
  for (std::size_t i = 0; i < 30; ++i) {
    hits += count[i] - 1;
    EXPECT_GE(last[i], static_cast<float>(i + 1));
    EXPECT_LE(last[i], 30.0F);
  }
  EXPECT_EQ(hits, 30.0F);  // one per query
}

// Noise and temperature in plain loops: softmax((z + g) / tau), tau = 1 in the prompt, 2 at the 20th of 20 tokens of the answer.
TEST(GumbelAttention, AccumulatesNoisyAttentionAndHeatsUpInDecodeOnly) {
  for (const std::int32_t prompt : {30, 10}) {
    RandomLayer layer({1, 4, 2, 8, 16}, 1, 30, 3, 1);
    layer.seqs[0].prompt_tokens = prompt;
    const std::vector<float> scores = scores_after_prompt(layer, *make_part<ScorerRegistry>("gumbel_attention", "{max_new_tokens: 20}"));
    const std::uint64_t seed = Draw{7, Purpose::kPolicy, 0, 0, 0}.bits();
    std::vector<double> expected(60, 0.0);
    for (std::int32_t head = 0; head < 4; ++head)
      for (std::int32_t t = 0; t < 30; ++t) {
        std::vector<double> p = plain_row_of_head(layer, 0, head, t);
        for (std::size_t i = 0; i < p.size(); ++i) {
          const double u = Draw{seed, Purpose::kGumbel, i, static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(head)}.uniform();
          p[i] = std::exp((std::log(p[i]) - std::log(-std::log(u))) / (prompt == 30 ? 1 : 2));
        }
        const double total = std::accumulate(p.begin(), p.end(), 0.0);
        for (std::size_t i = 0; i < p.size(); ++i) expected[static_cast<std::size_t>(head / 2 * 30) + i] += p[i] / total / 2;
      }
    for (std::size_t i = 0; i < 60; ++i) EXPECT_NEAR(scores[i], expected[i], 1e-4) << prompt << " " << i;
  }
}

TEST(GumbelAttention, StaysAtItsLastTemperature) {
  const auto scores = [](std::int32_t prompt) {
    RandomLayer layer({1, 4, 2, 8, 16}, 1, 30, 3, 1);
    layer.seqs[0].prompt_tokens = prompt;
    return scores_after_prompt(layer, *make_part<ScorerRegistry>("gumbel_attention", "{max_new_tokens: 10}"));
  };
  EXPECT_EQ(scores(10), scores(20));
  EXPECT_NE(scores(20), scores(25));
}

// Prompts and decode steps in one batch: each sequence gets what it would get alone.
TEST(Scope, RowsFollowThePhaseOfTheirSequence) {
  RandomLayer mixed({1, 6, 2, 8, 16}, 2, 40, 3, 1);
  mixed.seqs[1] = {1, 39, 1, 20, -1};
  auto scorer = make_part<ScorerRegistry>("scope", "{prompt: {window_attention: {window_tokens: 4, pool: none}}}");
  const std::vector<float> scores = scores_after_prompt(mixed, *scorer, 4);
  const std::vector<float> expected_prompt =
      scores_after_prompt(mixed, *make_part<ScorerRegistry>("window_attention", "{window_tokens: 4, pool: none}"), 4);
  EXPECT_TRUE(std::equal(scores.begin(), scores.begin() + 80, expected_prompt.begin()));
  for (std::int32_t h = 0; h < 2; ++h) {
    const std::vector<double> row = plain_row(mixed, 1, h, 39);
    for (std::size_t i = 0; i < 40; ++i) EXPECT_NEAR(scores[static_cast<std::size_t>(80 + h * 40) + i], row[i], 2e-6);
  }
  EXPECT_EQ(std::tuple(scorer->needs().window_queries, scorer->needs().step_queries), std::tuple(4, true));
}

TEST(ScoreThreshold, CountsWhatReachesIt) {
  RandomLayer layer({1, 2, 2, 8, 16}, 1, 4, 3), shapes({1, 2, 2, 8, 16}, 1, 4, 3, 0, false);
  auto allocator = make_part<AllocatorRegistry>("score_threshold", "{min_score: 1}");
  const std::vector<float> scores = {0, 1, 2, 0, std::numeric_limits<float>::infinity(), 0, 0, 0};
  std::vector<std::int32_t> keep(2), bound(2);
  const std::int32_t target = 4;
  std::vector<ScoredLayer> scored = {{0, layer.store.rows(), scores.data(), &target, nullptr, keep.data()}};
  allocator->allocate(layer.ops, layer.model, layer.seqs, scored);
  EXPECT_EQ(keep, (std::vector<std::int32_t>{2, 1}));
  std::vector<ScoredLayer> unscored = {{0, shapes.store.rows(), nullptr, &target, nullptr, bound.data()}};
  allocator->allocate(shapes.ops, shapes.model, shapes.seqs, unscored);
  EXPECT_EQ(bound, (std::vector<std::int32_t>{4, 4}));
  EXPECT_EQ(layer.ops.log(), shapes.ops.log());
}

// R-KV: attention from the latest queries, less the redundancy of keys.

constexpr std::int32_t kLikeTokens = 40, kWindow = 6;
constexpr ModelShape kLikeShape{1, 6, 2, 16};

// Mean over the last queries of the softmax over older tokens, maximum over 3 query heads before it and over 5 neighbours after it.
std::vector<double> attention_by_hand(const RandomLayer& layer, const KvRows& kv, std::int32_t r) {
  constexpr std::int32_t kOlder = kLikeTokens - kWindow;
  std::vector<double> mean(kOlder), pooled;
  for (std::int32_t t = kOlder; t < kLikeTokens; ++t) {
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
  RandomLayer layer(kLikeShape, 1, kLikeTokens, 3);
  auto scorer = make_part<ScorerRegistry>("attention_and_redundancy",
                                          "{window_tokens: 6, pool: max, pool_tokens: 5, attention_share: 0.3, similar_cosine: 0.2}");
  const std::int32_t prompt = kLikeTokens - 4;
  std::vector<float> scores(2 * kLikeTokens);
  for (std::int32_t begin = 0, end = prompt - 1; begin < kLikeTokens; begin = end, ++end) {
    layer.seqs[0] = {0, begin, end - begin, prompt, -1};
    LayerStep step = layer.prompt_step(kWindow);
    scorer->observe(step);
    if (end == kLikeTokens) scorer->score(step, scores.data());
  }
  const KvRows kv = layer.store.rows();
  for (std::int32_t r = 0; r < 2; ++r) {
    const std::vector<double> attention = attention_by_hand(layer, kv, r), redundancy = redundancy_by_hand(kv, r, 0.2);
    for (std::size_t i = 0; i < kLikeTokens; ++i) {
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
  RandomLayer layer(kLikeShape, 1, kLikeTokens, 3);
  auto scorer = make_part<ScorerRegistry>("attention_and_redundancy", "{window_tokens: 6, pool: none, attention_share: 1}");
  LayerStep step = layer.prompt_step(kWindow);
  scorer->observe(step);
  scorer->forget(0);
  const std::vector<float> scores = scored(*scorer, step);
  for (std::size_t i = 0; i < kLikeTokens - kWindow; ++i) EXPECT_NEAR(scores[i], 1.0 / (kLikeTokens - kWindow), 1e-6);
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
