#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

const std::vector<std::int32_t> kGroups = {1, 3, 4, 8};

TEST(Recency, RanksByPositionAndProtectsSinks) {
  RandomLayer layer({1, 4, 2, 8, 16}, 2, 65, 3);
  auto scorer = make_part<ScorerRegistry>("recency", "{sinks_tokens: 2}");
  const std::vector<float> scores = scores_after_prompt(layer, *scorer);
  for (std::size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i], static_cast<float>(i % 65));
  EXPECT_EQ(scorer->protects().sinks, 2);
}

TEST(RandomScores, DependOnSeedHeadSequenceAndLayerButNotOnWhatElseIsHeld) {
  auto scorer = make_part<ScorerRegistry>("random");
  RandomLayer longer({1, 4, 2, 8, 16}, 2, 65, 3), shorter({1, 4, 2, 8, 16}, 2, 30, 4);
  const std::vector<float> a = scores_after_prompt(longer, *scorer), b = scores_after_prompt(shorter, *scorer);
  for (std::size_t r = 0; r < 4; ++r) EXPECT_TRUE(std::equal(&b[r * 30], &b[r * 30] + 30, &a[r * 65])) << r;
  EXPECT_NE(a[0], a[65]);
  EXPECT_NE(a[0], a[130]);
  double mean = 0;
  for (const float x : a) mean += x / static_cast<double>(a.size());
  EXPECT_NEAR(mean, 0.5, 0.1);
}

TEST(PeakAttention, IsTheMostThatOneOfTheLateQueriesPays) {
  for (const std::int32_t group : kGroups) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, 65, 3);
    auto scorer = make_part<ScorerRegistry>("peak_attention", "{queries_frac: 0.2, window_tokens: 40}");
    const std::vector<float> got = scores_after_prompt(layer, *scorer, 40);
    for (std::int32_t r = 0; r < 4; ++r) {
      std::vector<double> most(65, 0.0);
      for (std::int32_t t = 65 - 13; t < 65; ++t) {  // a fifth of 65, of the 40 that are there
        const std::vector<double> p = plain_row(layer, r / 2, r % 2, t);
        for (std::size_t i = 0; i < p.size(); ++i) most[i] = std::max(most[i], p[i]);
      }
      for (std::size_t i = 0; i < 65; ++i) EXPECT_NEAR(got[static_cast<std::size_t>(r) * 65 + i], most[i], 1e-5);
    }
  }
}

// MPCache's static half deletes the tokens that no late query attends to, and no others.
TEST(PeakAttention, ATokenGoesWhereNoLateQueryLooks) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 65, 3);
  auto scorer = make_part<ScorerRegistry>("peak_attention", "{}");
  auto allocator = make_part<AllocatorRegistry>("score_threshold", "{min_score: 0.03}");
  std::vector<float> scores = scores_after_prompt(layer, *scorer, 13);
  std::vector<std::int32_t> keep(2), target{65};
  ScoredLayer scored;
  LayerStep step = layer.prompt_step(13);
  scored.kv = step.kv, scored.scores = scores.data(), scored.keep = keep.data(), scored.target = target.data();
  allocator->allocate(step.ops, layer.model, step.seqs, {&scored, 1});
  for (std::int32_t r = 0; r < 2; ++r) {
    std::set<std::size_t> seen;
    for (std::int32_t t = 65 - 13; t < 65; ++t) {
      const std::vector<double> p = plain_row(layer, 0, r, t);
      for (std::size_t i = 0; i < p.size(); ++i)
        if (p[i] >= 0.03) seen.insert(i);
    }
    EXPECT_EQ(nth(keep, r), std::ssize(seen));
    EXPECT_LT(seen.size(), 65U);
    EXPECT_GT(seen.size(), 0U);
  }
}

// H2O's sums favour early tokens; divided by the number of queries that saw the token they are ObservedAttention's.
TEST(AccumulatedAttention, EqualsPlainColumnSums) {
  for (const std::int32_t group : kGroups) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, 65, 3, 1), same({1, 2 * group, 2, 8, 16}, 2, 65, 3, 1);
    const std::vector<float> plain = scores_after_prompt(layer, *make_part<ScorerRegistry>("accumulated_attention"));
    const std::vector<float> divided = scores_after_prompt(same, *make_part<ScorerRegistry>("accumulated_attention", "{per_query: true}"));
    for (std::int32_t r = 0; r < 4; ++r) {
      const std::vector<double> column = plain_window(layer, r / 2, r % 2, 65);
      for (std::size_t i = 0; i < 65; ++i) {
        EXPECT_NEAR(plain[static_cast<std::size_t>(r) * 65 + i], column[i], 1e-5);
        EXPECT_NEAR(divided[static_cast<std::size_t>(r) * 65 + i], column[i] / (65.0 - static_cast<double>(i)), 1e-5);
      }
    }
  }
}

// A prompt in chunks and then decode steps add up to the same sums as one pass, as long as nothing is evicted.
TEST(AccumulatedAttention, ChunksAndDecodeStepsAddUp) {
  const ModelShape model{1, 6, 2, 8, 16};
  RandomLayer whole(model, 1, 65, 3, 1);
  auto scorer = make_part<ScorerRegistry>("accumulated_attention", "{decay: 0.97}");
  const std::vector<float> expected = scores_after_prompt(whole, *scorer);
  KvStore store(model, 1, 1, true);
  Ops ops(Ops::Backend::kCpu);
  std::vector<float> scores(130);
  std::int32_t seen = 0;
  for (const std::int32_t count : {30, 1, 32, 1, 1}) {
    store.append(0, whole.k[0].data() + seen * 16, whole.v[0].data() + seen * 16, count, seen);
    const std::vector<SeqStep> seqs = {{0, seen, count, 63, -1}};
    const std::vector<Queries> queries = {{whole.q[0].data() + seen * 48, count, seen}};
    LayerStep step{ops, model, 0, seqs, store.rows(), {}, 7};
    step.in.step = queries;
    scorer->observe(step);
    seen += count;
    if (seen == 65) scorer->score(step, scores.data());
  }
  for (std::size_t i = 0; i < 130; ++i) EXPECT_NEAR(scores[i], expected[i], 1e-5);
}

TEST(LastQueryAttention, IsTheMeanOverTheLayersHeadsAfterTheSoftmax) {
  for (const std::int32_t group : kGroups)
    for (const std::int32_t n : {1, 64, 65}) {
      RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, n, 3);
      const std::vector<float> scores = scores_after_prompt(layer, *make_part<ScorerRegistry>("last_query_attention"));
      for (std::int32_t s = 0; s < 2; ++s) {
        const std::vector<double> a = plain_row(layer, s, 0, n - 1), b = plain_row(layer, s, 1, n - 1);
        for (std::int32_t h = 0; h < 2; ++h)
          for (std::size_t i = 0; i < a.size(); ++i)
            EXPECT_NEAR(scores[static_cast<std::size_t>((2 * s + h) * n) + i], (a[i] + b[i]) / 2, 2e-6);
      }
    }
}

TEST(LastQueryAttention, PerHeadAndWholeStep) {
  RandomLayer layer({1, 6, 2, 8, 16}, 1, 20, 3);
  const auto scores = [&](const char* options) {
    return scores_after_prompt(layer, *make_part<ScorerRegistry>("last_query_attention", options));
  };
  const std::vector<float> last = scores("{share_heads: false}"), all = scores("{share_heads: false, queries: step}");
  const std::vector<double> expected = plain_row(layer, 0, 1, 19);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_NEAR(last[20 + i], expected[i], 2e-6);
  double first_column = 0;
  for (std::int32_t t = 0; t < 20; ++t) first_column += plain_row(layer, 0, 1, t)[0];
  EXPECT_NEAR(all[20], first_column, 1e-5);
}

TEST(QuestionAttention, WeighsRowsByVisibleTokensAndKeepsTheQuestion) {
  for (const auto& [weigh, offset] : std::vector<std::pair<std::string, int>>{{"visible", 1}, {"visible_minus_one", 0}, {"none", -1}}) {
    RandomLayer layer({1, 6, 2, 8, 16}, 1, 40, 3);
    layer.seqs[0].question_begin = 33;
    auto scorer = make_part<ScorerRegistry>("question_attention", "{weigh: " + weigh + "}");
    const std::vector<float> scores = scores_after_prompt(layer, *scorer, 20);
    for (std::size_t i = 0; i < 33; ++i) {
      double expected = 0;
      for (std::int32_t t = 33; t < 40; ++t) expected += plain_row(layer, 0, 1, t)[i] * (offset < 0 ? 1 : t + offset);
      EXPECT_NEAR(scores[40 + i], expected, 2e-5 * (1 + expected));
    }
    for (std::size_t i = 33; i < 40; ++i) EXPECT_TRUE(std::isinf(scores[40 + i]));
  }
}

TEST(QuestionAttention, RefusesASequenceWithoutAQuestion) {
  RandomLayer layer({1, 6, 2, 8, 16}, 1, 40, 3);
  auto scorer = make_part<ScorerRegistry>("question_attention");
  EXPECT_THROW(scores_after_prompt(layer, *scorer, 20), std::runtime_error);
}

TEST(Oracle, SumsTheAttentionOfFutureQueries) {
  RandomLayer layer({1, 6, 2, 8, 16}, 1, 40, 3);
  const RandomLayer later({1, 6, 2, 8, 16}, 1, 5, 9);
  auto scorer = make_part<ScorerRegistry>("oracle");
  EXPECT_TRUE(scorer->needs().future_queries);
  LayerStep step = layer.prompt_step(1);
  const std::vector<Queries> future = {{later.q[0].data(), 5, 40}};
  step.in.future = future;
  std::vector<float> scores = scored(*scorer, step);
  EXPECT_NEAR(std::accumulate(scores.begin(), scores.begin() + 40, 0.0F), 5.0F, 1e-5F);  // each future query spreads 1 over the cache
  const std::vector<Queries> none = {{nullptr, 0, 40}};
  step.in.future = none;
  scorer->score(step, scores.data());
  for (const float s : scores) EXPECT_EQ(s, 0.0F);
}

TEST(WindowAttention, EqualsPlainLoopsForEveryGroupSize) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, 65, 3);
    const std::vector<float> scores = scored(layer, "window_attention", "{window_tokens: 5, pool: none}", 5);
    for (std::int32_t r = 0; r < 4; ++r) {
      const std::vector<double> expected = plain_window(layer, r / 2, r % 2, 5);
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(scores[static_cast<std::size_t>(r) * 65 + i], expected[i], 2e-6) << "row " << r << " token " << i;
    }
  }
}

TEST(WindowAttention, TakesNoMoreThanItsOwnOfALargerWindow) {
  RandomLayer layer({1, 4, 2, 8, 16}, 2, 65, 3);
  const std::vector<float> own = scored(layer, "window_attention", "{window_tokens: 8}", 8);
  EXPECT_EQ(layer.ops.log().size(), 2U);
  EXPECT_EQ(scored(layer, "window_attention", "{window_tokens: 8}", 40), own);
}

TEST(WindowAttention, MeanOverTheWindowIsTheSumOverItsSize) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 65, 3);
  const std::vector<float> of_sum = scored(layer, "window_attention", "{window_tokens: 8}", 8),
                           of_mean = scored(layer, "window_attention", "{window_tokens: 8, queries: mean}", 8);
  for (std::size_t i = 0; i < 130; ++i) EXPECT_FLOAT_EQ(of_mean[i], of_sum[i] / 8);
}

TEST(WindowMeanVariance, IsTheMeanOverHeadsOfMeanAndWeighedVariance) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t window : {1, 5}) {
      RandomLayer layer({1, 2 * group, 2, 8, 12}, 2, 33, 9);
      auto scorer =
          make_part<ScorerRegistry>("window_mean_variance", "{gamma: 7, pool: none, window_tokens: " + std::to_string(window) + "}");
      EXPECT_EQ(scorer->protects().recent, window);
      const std::vector<float> scores = scores_after_prompt(layer, *scorer, 16);
      for (std::int32_t row = 0; row < 4; ++row)
        for (std::int32_t i = 0; i < 33 - window; ++i) {
          double wanted = 0;
          for (std::int32_t h = row % 2 * group; h < (row % 2 + 1) * group; ++h) {
            std::vector<double> p;
            for (std::int32_t t = 33 - window; t < 33; ++t) p.push_back(nth(plain_row_of_head(layer, row / 2, h, t), i));
            double mean = 0, var = 0;
            for (const double x : p) mean += x / window;
            for (const double x : p) var += window > 1 ? (x - mean) * (x - mean) / (window - 1) : 0;
            wanted += (mean + 7 * var) / group;
          }
          EXPECT_NEAR(nth(scores, row * 33 + i), wanted, 1e-5 * wanted + 1e-7) << group << " " << window << " " << i;
        }
    }
}

TEST(WindowMeanVariance, PoolsTheEarlierTokens) {
  RandomLayer layer({1, 4, 2, 8, 12}, 1, 20, 9), same({1, 4, 2, 8, 12}, 1, 20, 9);
  const auto plain = make_part<ScorerRegistry>("window_mean_variance", "{pool: none, window_tokens: 4}");
  const auto pooled = make_part<ScorerRegistry>("window_mean_variance", "{pool_tokens: 3, window_tokens: 4}");
  const std::vector<float> a = scores_after_prompt(layer, *plain, 4), b = scores_after_prompt(same, *pooled, 4);
  EXPECT_NEAR(b[0], (a[0] + a[1]) / 3, 1e-6);
  EXPECT_NEAR(b[7], (a[6] + a[7] + a[8]) / 3, 1e-6);
  EXPECT_NEAR(b[15], (a[14] + a[15]) / 3, 1e-6);  // the last one before the window
}

// A prompt step with everything that a scorer can ask for. Queries and keys before RoPE are the layer's own.
struct FullStep {
  FullStep(RandomLayer& layer, std::int32_t window) : step(layer.prompt_step(window)) {
    const bool data = layer.store.has_data();
    for (const auto& k : layer.k) keys.push_back(data ? k.data() : nullptr);
    w_o = RandomLayer::normals(static_cast<std::size_t>(layer.model.hidden_dim * layer.model.q_heads * layer.model.head_dim), 4, 99);
    step.in.pre_rope_queries = layer.step_queries;
    step.in.pre_rope_keys = keys;
    step.in.w_o = data ? w_o.data() : nullptr;
  }
  std::vector<const float*> keys;
  std::vector<float> w_o;
  LayerStep step;
};

RandomLayer layer_for(const NamedPart& c, std::int32_t group, std::int32_t sequences, std::int32_t tokens, bool with_data = true) {
  const std::int32_t words = make_part<ScorerRegistry>(c.name, c.parameters)->num_words();
  return {{8, 2 * group, 2, 16, 24, 2, 1e4}, sequences, tokens, 3, words, with_data};
}

// Scores after both stages; everything is kept but a third of each row.
std::vector<float> run(const NamedPart& c, RandomLayer& layer) {
  auto scorer = make_part<ScorerRegistry>(c.name, c.parameters);
  scorer->bind(0);
  for (SeqStep& seq : layer.seqs) seq.question_begin = seq.new_tokens / 2;
  FullStep full(layer, std::max(16, scorer->needs().window_queries));
  LayerStep& step = full.step;
  std::vector<float> scores(layer.store.has_data() ? static_cast<std::size_t>(step.kv.total()) : 0);
  std::vector<std::int32_t> keep;
  for (std::int32_t r = 0; r < step.kv.num_rows; ++r) keep.push_back(step.kv.len[r] - step.kv.len[r] / 3);
  scorer->observe(step);
  scorer->score(step, layer.store.has_data() ? scores.data() : nullptr);
  scorer->refine(step, keep.data(), layer.store.has_data() ? scores.data() : nullptr);
  return scores;
}

class ScorerLog : public ::testing::TestWithParam<NamedPart> {};

TEST_P(ScorerLog, IsTheSameWithAndWithoutData) {
  for (const std::int32_t n : {0, 1, 63, 65}) {
    RandomLayer with = layer_for(GetParam(), 3, 2, n), without = layer_for(GetParam(), 3, 2, n, false);
    run(GetParam(), with);
    run(GetParam(), without);
    EXPECT_FALSE(with.ops.log().empty());
    EXPECT_EQ(with.ops.log(), without.ops.log()) << n;
  }
}

TEST_P(ScorerLog, ScoresAreNumbersAndTheSameTwice) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    RandomLayer a = layer_for(GetParam(), group, 2, 65), b = layer_for(GetParam(), group, 2, 65);
    const std::vector<float> scores = run(GetParam(), a);
    EXPECT_TRUE(std::none_of(scores.begin(), scores.end(), [](float x) { return std::isnan(x); }));
    EXPECT_EQ(scores, run(GetParam(), b));
  }
}

TEST_P(ScorerLog, SequencesDoNotMix) {
  RandomLayer both = layer_for(GetParam(), 3, 2, 65), first = layer_for(GetParam(), 3, 1, 65);
  const std::vector<float> of_both = run(GetParam(), both), alone = run(GetParam(), first);
  EXPECT_EQ(std::vector<float>(of_both.begin(), of_both.begin() + static_cast<std::ptrdiff_t>(alone.size())), alone);
}

INSTANTIATE_TEST_SUITE_P(
    Geometry, ScorerLog,
    ::testing::Values(NamedPart{"key_norm", "{}"}, NamedPart{"key_norm", "{heads: shared}"}, NamedPart{"key_diversity", "{}"},
                      NamedPart{"lag_relative", "{sinks_tokens: 4, lag_tokens: 16}"}, NamedPart{"value_key_norm", "{}"},
                      NamedPart{"cur", "{}"}, NamedPart{"redundancy_and_value_norm", "{}"}, NamedPart{"leverage", "{sketch_dim: 8}"},
                      NamedPart{"compactor", "{sketch_dim: 8, chunk_tokens: 32}"}, NamedPart{"noncausal_chunk", "{chunk_tokens: 32}"},
                      NamedPart{"noncausal_chunk", "{chunk_tokens: 48, padded: true}"}, NamedPart{"expected_attention", "{}"},
                      NamedPart{"expected_attention", "{covariance: false, value_norm: false}"}, NamedPart{"value_leverage", "{}"},
                      NamedPart{"query_direction", "{window_tokens: 16}"}, NamedPart{"peak_attention", "{window_tokens: 16}"},
                      NamedPart{"attention_and_redundancy", "{window_tokens: 16}"}, NamedPart{"query_centers", "{}"}));

INSTANTIATE_TEST_SUITE_P(Attention, ScorerLog,
                         ::testing::Values(NamedPart{"recency", "{}"}, NamedPart{"random", "{}"}, NamedPart{"last_query_attention", "{}"},
                                           NamedPart{"question_attention", "{}"}, NamedPart{"gumbel_attention", "{}"},
                                           NamedPart{"attention_mean_spread", "{}"}, NamedPart{"recurrence_interval", "{}"},
                                           NamedPart{"topk_hits", "{}"}, NamedPart{"low_attention_count", "{window_tokens: 40}"},
                                           NamedPart{"attention_recency_ring", "{window_tokens: 40}"},
                                           NamedPart{"accumulated_attention", "{per_query: true}"},
                                           NamedPart{"scope", "{prompt: accumulated_attention}"},
                                           NamedPart{"window_attention", "{window_tokens: 16}"}, NamedPart{"window_mean_variance", "{}"},
                                           NamedPart{"window_mean_variance", "{window_tokens: 8, pool: none}"}));

INSTANTIATE_TEST_SUITE_P(
    Wrappers, ScorerLog,
    ::testing::Values(NamedPart{"chunks", "{of: {window_attention: {window_tokens: 16}}}"},
                      NamedPart{"chunks", "{of: key_norm, chunks_frac: 0.5, heads: own, chunk_score: top_half, shared_layers: 4}"},
                      NamedPart{"slices", "{of: key_norm, slice_tokens: 20}"}, NamedPart{"slices", "{of: key_norm, peer_ties: true}"},
                      NamedPart{"value_aware", "{of: {window_attention: {window_tokens: 16}}}"},
                      NamedPart{"output_aware", "{of: {window_attention: {window_tokens: 16}}}"},
                      NamedPart{"output_aware", "{of: {window_attention: {window_tokens: 16}}, protect: above_max}"},
                      NamedPart{"graph", "{of: {window_attention: {window_tokens: 16}}}"},
                      NamedPart{"graph", "{of: {window_attention: {window_tokens: 16}}, combine: product}"},
                      NamedPart{"representatives", "{of: key_norm, anchor: random}"}, NamedPart{"fair", "{of: key_norm, span_tokens: 20}"},
                      NamedPart{"composite", "{of: key_norm}"}, NamedPart{"whitelist", "{of: key_norm, begin_tokens: 3, span_tokens: 7}"}));

}  // namespace
}  // namespace kvlab::test
