#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "policies/kv/scorer/whole_chunks_op.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

using Floats = std::vector<float>;
constexpr float kProtected = std::numeric_limits<float>::infinity();

Floats key_norms(LayerStep& step) { return scored(*make_part<ScorerRegistry>("key_norm"), step); }

TEST(Chunks, MeanOfHeadSumsAndWholeChunksBeforeTheWindow) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 50, 31);
  auto inner = make_part<ScorerRegistry>("window_attention", "{window_tokens: 6}");
  auto chunks = make_part<ScorerRegistry>("chunks", "{of: {window_attention: {window_tokens: 6}}, chunk_tokens: 10}");
  LayerStep step = layer.prompt_step(6);
  const auto raw = scored(*inner, step), got = scored(*chunks, step);
  std::vector<float> of_chunk;
  for (std::size_t begin = 0; begin < 44; begin += 10) {  // the last chunk before the window holds 4 tokens
    float sum = 0;
    const std::size_t count = std::min<std::size_t>(10, 44 - begin);
    for (std::size_t i = begin; i < begin + count; ++i) sum += raw[i] + raw[50 + i];
    of_chunk.push_back(sum / static_cast<float>(count));
    for (std::size_t i = begin; i < begin + count; ++i) {
      EXPECT_NEAR(got[i], of_chunk.back(), 1e-6);
      EXPECT_EQ(got[50 + i], got[i]) << "one set for all heads";
    }
  }
  Ints keep{33, 33};
  auto scores = got;
  chunks->refine(step, keep.data(), scores.data());
  Floats order = of_chunk;
  std::sort(order.begin(), order.end(), std::greater<>());
  std::int32_t expected = 6;
  for (const float score : order) {
    const std::int32_t tokens = score == of_chunk.back() ? 4 : 10;
    if (expected + tokens > 33) break;
    expected += tokens;
  }
  EXPECT_EQ(keep, (Ints{expected, expected}));
  EXPECT_EQ(step.ops.log().back().op, "whole_chunks");
}

TEST(Chunks, AShareOfTheChunksWithTheWindowInside) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 45, 31);
  auto chunks = make_part<ScorerRegistry>(
      "chunks", "{of: {window_attention: {window_tokens: 8}}, chunk_tokens: 10, protect: above_max, chunks_frac: 0.5}");
  EXPECT_EQ(chunks->protects().recent, 0);
  LayerStep step = layer.prompt_step(8);
  auto scores = scored(*chunks, step);
  EXPECT_EQ(std::max_element(scores.begin(), scores.begin() + 45) - scores.begin(), 40) << "the window's own chunk comes first";
  Ints keep{22, 22};
  chunks->refine(step, keep.data(), scores.data());
  EXPECT_EQ(keep, (Ints{15, 15})) << "two of five chunks: the last one has five tokens";
}

TEST(Chunks, TheBudgetMayBeAShareOfTheChunks) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 45, 31);
  const std::string around = "{of: {window_attention: {window_tokens: 8}}, chunk_tokens: 10, protect: above_max, ";
  auto by_frac = make_part<ScorerRegistry>("chunks", around + "chunks_frac: 0.65}");
  auto by_budget = make_part<ScorerRegistry>("chunks", around + "budget_of_chunks: true}");
  LayerStep step = layer.prompt_step(8);
  Ints expected{29, 29}, keep{29, 29}, in_tokens{29, 29};
  auto scores = scored(*by_frac, step);
  by_frac->refine(step, expected.data(), scores.data());
  by_budget->set_budget({0, 0.65});
  by_budget->refine(step, keep.data(), scores.data());
  EXPECT_EQ(keep, expected);
  EXPECT_EQ(keep[0], 25) << "three of five chunks, the short last one among them";
  auto counted = make_part<ScorerRegistry>("chunks", around + "budget_of_chunks: true}");
  counted->set_budget({29, 0});
  counted->refine(step, in_tokens.data(), scores.data());
  EXPECT_EQ(in_tokens[0], 25) << "as many as fit into 29 tokens";
}

TEST(Slices, EachKeepsItsShareAndAtLeastOneToken) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 23, 35);
  auto slices = make_part<ScorerRegistry>("slices", "{of: key_norm, slice_tokens: 10}");
  slices->set_budget({0, 0.25});
  LayerStep step = layer.prompt_step(0);
  const auto raw = key_norms(step);
  auto got = scored(*slices, step);
  EXPECT_EQ(got, raw);
  Ints keep{5, 5};
  slices->refine(step, keep.data(), got.data());
  EXPECT_EQ(keep, (Ints{5, 5})) << "two of each ten, and one of three though 0.25 of them is none";
  for (std::size_t head = 0; head < 2; ++head)
    for (std::size_t begin = 0; begin < 23; begin += 10) {
      const auto first = raw.begin() + static_cast<std::ptrdiff_t>(23 * head + begin);
      Floats order(first, first + (begin < 20 ? 10 : 3));
      std::sort(order.begin(), order.end(), std::greater<>());
      const float least = order[begin < 20 ? 1 : 0];
      for (std::size_t i = 0; i < order.size(); ++i)
        EXPECT_EQ(std::isinf(got[23 * head + begin + i]), first[static_cast<std::ptrdiff_t>(i)] >= least) << head << " " << begin + i;
    }
  Ints more{12, 23};
  slices->set_budget({12, 0});
  slices->refine(step, more.data(), got.data());
  EXPECT_EQ(more, (Ints{5 + 5 + 1, 23})) << "without a share, the row's own";
}

TEST(Chunks, LayersOfAGroupShareTheFirstOnesScores) {
  RandomLayer layer({4, 4, 2, 8, 16}, 1, 45, 31), other({4, 4, 2, 8, 16}, 1, 45, 32);
  auto chunks = make_part<ScorerRegistry>("chunks", "{of: key_norm, chunk_tokens: 8, heads: own, chunk_score: top_half, shared_layers: 2}");
  LayerStep step = layer.prompt_step(0), next = other.prompt_step(0);
  const auto first = scored(*chunks, step);
  next.layer = 1;
  EXPECT_EQ(scored(*chunks, next), first);
  next.layer = 2;
  EXPECT_NE(scored(*chunks, next), first);
  auto norms = key_norms(step);
  std::sort(norms.begin(), norms.begin() + 8, std::greater<>());
  EXPECT_NEAR(first[0], std::accumulate(norms.begin(), norms.begin() + 4, 0.0) / 4, 1e-5) << "mean of the better half";
}

TEST(Chunks, GroupsFollowTheModelsDepth) {
  for (const std::int32_t layers : {2, 4, 8}) {
    const ModelShape model{layers, 4, 2, 8, 16};
    auto chunks = make_part<ScorerRegistry>("chunks", "{of: key_norm, chunk_tokens: 8, heads: own, layer_groups: 4}");
    auto alone = make_part<ScorerRegistry>("chunks", "{of: key_norm, chunk_tokens: 8, heads: own}");
    Floats leader;
    for (std::int32_t l = 0; l < layers; ++l) {
      RandomLayer layer(model, 1, 45, 31 + static_cast<std::uint64_t>(l));
      LayerStep step = layer.prompt_step(0);
      step.layer = l;
      const auto own = scored(*alone, step), got = scored(*chunks, step);
      if (l % std::max(1, layers / 4) == 0) leader = own;
      EXPECT_EQ(got, leader) << "layer " << l << " of " << layers;
    }
  }
}

TEST(TextFirst, AllTextOutranksAllImages) {
  RandomLayer layer({1, 4, 2, 8, 16}, 2, 40, 31);
  std::vector<Ints> ids(2, Ints(40));
  for (std::size_t s = 0; s < 2; ++s)
    for (std::size_t t = 0; t < 40; ++t) ids[s][t] = t >= 5 + s && t < 25 ? 9 : static_cast<std::int32_t>(t % 7);
  const std::int32_t* const rows[] = {ids[0].data(), ids[1].data()};
  LayerStep step = layer.prompt_step(0);
  step.in.ids = rows;
  const auto raw = key_norms(step);
  const auto got = scored(*make_part<ScorerRegistry>("text_first", "{of: key_norm, image_id: 9}"), step);
  for (std::size_t r = 0; r < 4; ++r)
    for (std::size_t i = 0; i < 40; ++i) {
      if (ids[r / 2][i] != 9) {
        EXPECT_EQ(got[r * 40 + i], raw[r * 40 + i]);
        continue;
      }
      for (std::size_t j = 0; j < 40; ++j)
        if (ids[r / 2][j] != 9) {
          EXPECT_LT(got[r * 40 + i], got[r * 40 + j]);
        } else if (raw[r * 40 + i] < raw[r * 40 + j]) {
          EXPECT_LE(got[r * 40 + i], got[r * 40 + j]);
        }
    }
  EXPECT_EQ(scored(*make_part<ScorerRegistry>("text_first", "{of: key_norm, image_id: 30}"), step), raw) << "no such token";
}

TEST(TextFirst, WithoutImagesItIsTheOtherScore) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 40, 31);
  LayerStep step = layer.prompt_step(0);
  auto plain = make_part<ScorerRegistry>("text_first", "{of: key_norm}");
  EXPECT_EQ(scored(*plain, step), key_norms(step));
  EXPECT_TRUE(!plain->needs().token_ids && plain->needs().cpu_only.empty());
  EXPECT_TRUE(make_part<ScorerRegistry>("text_first", "{of: key_norm, image_id: 9}")->needs().token_ids);
}

TEST(ValueAware, MultipliesByTheValuesL1Norm) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 30, 33);
  LayerStep step = layer.prompt_step(6);
  auto aware = make_part<ScorerRegistry>("value_aware", "{of: {window_attention: {window_tokens: 6}}}");
  const auto raw = scored(*make_part<ScorerRegistry>("window_attention", "{window_tokens: 6}"), step), got = scored(*aware, step);
  for (std::size_t i = 0; i < 60; ++i) {
    double norm = 0;
    for (std::size_t c = 0; c < 8; ++c) norm += std::fabs(static_cast<double>(layer.v[0][(i % 30 * 2 + i / 30) * 8 + c]));
    EXPECT_NEAR(got[i], static_cast<double>(raw[i]) * norm, 1e-5);
  }
  EXPECT_EQ(std::tuple(aware->protects().sinks, aware->protects().recent, aware->needs().window_queries), std::tuple(20, 6, 6));
}

TEST(OutputAware, FirstHalfByScoreTheRestByProjectedValue) {
  RandomLayer layer({1, 6, 2, 4, 10}, 1, 24, 34);
  const auto w_o = RandomLayer::normals(10 * 6 * 4, 3, 50);
  auto aware = make_part<ScorerRegistry>("output_aware", "{of: {window_attention: {window_tokens: 8, pool: none}}, epsilon: 0.5}");
  EXPECT_TRUE(aware->needs().output_weights);
  LayerStep window = layer.prompt_step(8);
  window.in.w_o = w_o.data();
  const auto raw = scored(*aware, window);
  auto scores = raw;
  Ints keep{9, 6};
  aware->refine(window, keep.data(), scores.data());
  for (std::size_t head = 0; head < 2; ++head) {
    Floats order(raw.begin() + static_cast<std::ptrdiff_t>(24 * head), raw.begin() + static_cast<std::ptrdiff_t>(24 * head + 24));
    std::sort(order.begin(), order.end(), std::greater<>());
    const float last_of_first_stage = order[head == 0 ? 3 : 2];
    for (std::size_t i = 0; i < 24; ++i) {
      double norm = 0;
      for (std::size_t h = 3 * head; h < 3 * head + 3; ++h)
        for (std::size_t o = 0; o < 10; ++o) norm += std::fabs(dot(&w_o[o * 24 + h * 4], &layer.v[0][(i * 2 + head) * 4], 4)) / 3;
      const float score = raw[24 * head + i];
      if (score >= last_of_first_stage) {
        EXPECT_TRUE(std::isinf(scores[24 * head + i]));
      } else {
        EXPECT_NEAR(scores[24 * head + i], (static_cast<double>(score) + 0.5) * norm, 1e-5);
      }
    }
  }
}

TEST(Graph, LikeKeysOfBetterTokensDecay) {
  RandomLayer layer({1, 1, 1, 2, 4}, 1, 4, 35);
  const Floats keys{1, 0, 2, 0, 0, 3, -1, 0};  // token 1 repeats token 0, token 2 is orthogonal, token 3 is opposite
  for (std::int32_t i = 0; i < 4; ++i) std::copy_n(keys.data() + 2 * i, 2, layer.store.rows().key(0, i));
  LayerStep step = layer.prompt_step(0);
  auto graph = make_part<ScorerRegistry>("graph", "{of: key_norm, sources_frac: 0.5}");
  Floats scores{8, 7, 6, 5};
  std::int32_t keep = 2;  // one source: token 0
  graph->refine(step, &keep, scores.data());
  EXPECT_EQ(scores, (Floats{8, 0, 6, 5}));
  scores = {8, 7, kProtected, 5};
  graph->refine(step, &keep, scores.data());
  EXPECT_EQ(scores, (Floats{8, 7, kProtected, 5})) << "the source is the protected token";
}

TEST(Representatives, SpreadOverTheDistanceToTheAnchor) {
  RandomLayer layer({1, 2, 2, 2, 4}, 1, 8, 36);
  LayerStep step = layer.prompt_step(0);
  auto crush = make_part<ScorerRegistry>("representatives", "{of: key_norm, representatives_frac: 0.5, anchor: zeros}");
  // Top two of head 0: tokens 0, 1; of head 1: tokens 0, 2. Mean: tokens 0 and 1 (10 and 4.5) are important.
  Floats scores{10, 9, 1, 2, 2, 2, 2, 2, /**/ 10, 0, 6, 2, 2, 2, 2, 2};
  Ints keep{4, 4};
  crush->refine(step, keep.data(), scores.data());
  // Others by distance to 00: 3 4 5 6 7 (0), then 2 (1); places 1 and 4 of these six: tokens 4 and 7.
  const Floats expected{2, 2, 0, 0, 1, 0, 0, 1};
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(scores[i], expected[i % 8]) << i;
  keep = {4, 3};
  EXPECT_THROW(crush->refine(step, keep.data(), scores.data()), InputError);
}

// The first chunk has the largest mean, on one token: it keeps that token, and the budget covers the second chunk too.
TEST(GatedChunks, PeakedChunksKeepTheirBestTokens) {
  constexpr float gone = -kProtected;
  Floats scores{9, 0, 0, 0, 2, 2, 2, 2, 1, 1, 1, 1.5F};
  const std::int32_t len = 12, budget = 5;
  const std::int64_t first[] = {0, 12};
  KvRows kv;
  kv.num_rows = 1, kv.len = &len, kv.first = first;
  run_cpu(GatedChunks{kv, 4, 1, &budget, scores.data()});
  EXPECT_EQ(scores, (Floats{9, gone, gone, gone, 2, 2, 2, 2, gone, gone, gone, gone}));
}

// Scores rise with the position: one top for all spans would keep the newest tokens. The question is tokens 20 to 24.
TEST(Fair, EverySpanKeepsItsShare) {
  struct Case {
    const char* parameters;
    std::int32_t keep, protected_from;
    Ints raised;
  };
  for (const Case& c :
       {// Spans of 8, 8, 4 and the question's 5 tokens: shares 3.2, 3.2, 1.6, 2 of 10; the largest remainder takes the tenth.
        Case{"{of: key_norm, span_tokens: 8, question: true}", 10, 25, {5, 6, 7, 13, 14, 15, 18, 19, 23, 24}},
        // A share makes the budget: 2 of each span of 8, and at least one of the last.
        Case{"{of: key_norm, span_tokens: 8, quota_frac: 0.3}", 7, 25, {6, 7, 14, 15, 22, 23, 24}},
        // Protected tokens count towards the quota of their span. The last 8 leave 2 of 10, which the other spans share, and stay.
        Case{"{of: {window_attention: {window_tokens: 8}}, span_tokens: 8}", 10, 17, {7, 15, 17, 18, 19, 20, 21, 22, 23, 24}}}) {
    SCOPED_TRACE(c.parameters);
    RandomLayer layer({1, 1, 1, 4, 4}, 1, 25, 37);
    layer.seqs[0].question_begin = 20;
    LayerStep step = layer.prompt_step(8);
    const auto fair = make_part<ScorerRegistry>("fair", c.parameters);
    EXPECT_EQ(fair->needs().question, std::string(c.parameters).find("question") != std::string::npos);
    Floats scores;
    for (std::int32_t i = 0; i < 25; ++i) scores.push_back(i < c.protected_from ? static_cast<float>(i) : kProtected);
    std::int32_t keep = c.keep;
    fair->refine(step, &keep, scores.data());
    EXPECT_EQ(keep, c.keep);
    Ints raised;
    for (std::int32_t i = 0; i < 25; ++i)
      if (nth(scores, i) > 1e30F) raised.push_back(i);
    EXPECT_EQ(raised, c.raised);
    for (std::int32_t i = c.protected_from; i < 25; ++i) EXPECT_EQ(nth(scores, i), kProtected) << i;
  }
}

TEST(Composite, AddsTheMeanOverHeads) {
  RandomLayer layer({1, 3, 3, 4, 4}, 1, 9, 39);
  LayerStep step = layer.prompt_step(0);
  const auto raw = key_norms(step), got = scored(*make_part<ScorerRegistry>("composite", "{of: key_norm}"), step);
  for (std::size_t i = 0; i < 27; ++i) EXPECT_NEAR(got[i], raw[i] + (raw[i % 9] + raw[9 + i % 9] + raw[18 + i % 9]) / 3, 1e-5);
}

TEST(ScorerWrapper, UnknownAndMisspelledInnerPartsAreRefused) {
  EXPECT_THROW(make_part<ScorerRegistry>("chunks", "{of: window_atention}"), InputError);
  EXPECT_THROW(make_part<ScorerRegistry>("chunks", "{of: {window_attention: {windw_tokens: 3}}}"), InputError);
}

TEST(ScorerWrapper, PassesOnWhatTheInnerScorerStates) {
  const auto inner = make_part<ScorerRegistry>("accumulated_attention");
  ASSERT_GT(inner->num_words(), 0);
  for (const char* name : {"value_aware", "text_first", "graph", "fair"}) {
    const auto outer = make_part<ScorerRegistry>(name, "{of: accumulated_attention}");
    EXPECT_EQ(outer->num_words(), inner->num_words()) << name;
    EXPECT_EQ(outer->resident_words(), inner->resident_words()) << name;
    EXPECT_EQ(outer->comparable_across_heads(), inner->comparable_across_heads()) << name;
  }
  const FewTokens few{true, 1};
  EXPECT_TRUE(make_part<ScorerRegistry>("value_aware", "{of: accumulated_attention}")->is_order_free(few));
  EXPECT_FALSE(make_part<ScorerRegistry>("value_aware", "{of: key_diversity}")->is_order_free(few));
  EXPECT_FALSE(make_part<ScorerRegistry>("value_aware", "{of: recency}")->keeps_latest());
  EXPECT_TRUE(make_part<ScorerRegistry>("whitelist", "{of: {output_aware: {first_stage: of_budget}}, span_tokens: 4}")->marks_tokens());
}

TEST(Whitelist, ItsSpanStays) {
  RandomLayer layer({1, 2, 2, 4, 4}, 1, 12, 38);
  LayerStep step = layer.prompt_step(0);
  const auto scores = scored(*make_part<ScorerRegistry>("whitelist", "{of: key_norm, begin_tokens: 3, span_tokens: 4}"), step);
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(std::isinf(scores[i]), i % 12 >= 3 && i % 12 < 7) << i;
}

}  // namespace
}  // namespace kvlab::test
