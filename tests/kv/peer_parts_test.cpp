// Options of parts by which recipes keep the tokens that NVIDIA kvpress keeps; tests/parity compares whole recipes with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/score/mark_top_op.h"
#include "kernels/select/top_k/top_k.h"
#include "tests/kv/allocator_fixture.h"
#include "tests/recipes_in.h"

namespace kvlab::test {
namespace {

using Floats = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(PeerTies, ThePoolDropsItsWorstAfterEachRowsFloor) {
  const Floats scores{5, 5, 5, 1, 9, 8, 7, 6};
  const std::int64_t first[]{0, 4, 8}, budget[]{4};
  const std::int32_t floor[]{1, 1};
  Ints keep(2);
  Floats marked = scores;
  TopK pooled{2, first, scores.data(), nullptr, nullptr, nullptr, true, TopK::Kind::kCounts, 2, nullptr, budget, floor, keep.data()};
  pooled.drops = true, pooled.marked = marked.data();
  run_cpu(pooled);
  EXPECT_EQ(keep, (Ints{1, 3})) << "one of the three fives is forced, the other row's three best beat the others";
  EXPECT_EQ(std::count(marked.begin(), marked.begin() + 4, -kInfinity), 3);
  EXPECT_EQ(Floats(marked.begin() + 4, marked.end()), (Floats{9, 8, 7, -kInfinity}));
  marked = scores, pooled.drops = false;
  run_cpu(pooled);
  EXPECT_EQ(keep, (Ints{1, 3}));
  EXPECT_EQ(std::count(marked.begin(), marked.begin() + 4, kInfinity), 1) << "the forced token alone";
  EXPECT_EQ(marked[4], kInfinity);
}

TEST(PeerTies, MarkTopTakesTheFirstOfALongerRanking) {
  const Floats scores{1, 4, 2, 3};
  const std::int64_t first[]{0, 4};
  const std::int32_t count[]{1}, ranked[]{3};
  Floats marked(4);
  MarkTop mark{1, first, scores.data(), count, marked.data()};
  mark.ranked = ranked;
  run_cpu(mark);
  EXPECT_EQ(marked, (Floats{0, kInfinity, 0, 0}));
}

// torch.rand with torch.Generator().manual_seed(7), the first three numbers.
TEST(RandomScores, DrawsOfTorch) {
  RandomLayer layer({2, 4, 2, 8, 16}, 1, 20, 31);
  auto random = make_part<ScorerRegistry>("random", "{generator: torch, torch_seed: 7}");
  LayerStep step = layer.prompt_step(0);
  const Floats scores = scored(*random, step);
  EXPECT_FLOAT_EQ(scores[0], 0.53492254F);
  EXPECT_FLOAT_EQ(scores[1], 0.19880319F);
  EXPECT_FLOAT_EQ(scores[2], 0.6592117F);
  step.layer = 1;
  EXPECT_EQ(scored(*random, step), scores) << "alike in all layers";
}

// A slice of its own has its own mean key: the scores are those of a prompt that is the slice.
TEST(Slices, AloneAreScoredAsPromptsOfTheirOwn) {
  RandomLayer layer({1, 4, 2, 8, 16}, 2, 23, 35);
  auto plain = make_part<ScorerRegistry>("key_diversity");
  auto slices = make_part<ScorerRegistry>("slices", "{of: key_diversity, slice_tokens: 10, scored: alone}");
  LayerStep step = layer.prompt_step(0);
  const Floats got = scored(*slices, step);
  EXPECT_NE(got, scored(*plain, step));
  for (std::int32_t s = 0; s < 2; ++s)
    for (std::int32_t begin = 0; begin < 23; begin += 10) {
      const std::int32_t n = std::min(10, 23 - begin);
      KvStore alone(layer.model, 1, 0, true);
      alone.append(0, &nth(nth(layer.k, s), begin * 16), &nth(nth(layer.v, s), begin * 16), n, 0);
      const SeqStep seq{0, 0, n, n};
      LayerStep part{layer.ops, layer.model, 0, {&seq, 1}, alone.rows(), {}, 7};
      const Floats expected = scored(*plain, part);
      for (std::int32_t h = 0; h < 2; ++h)
        for (std::int32_t i = 0; i < n; ++i) EXPECT_EQ(nth(got, (s * 2 + h) * 23 + begin + i), nth(expected, h * n + i));
    }
}

TEST(Slices, AloneRefuseScorersThatReadQueries) {
  EXPECT_THROW(make_part<ScorerRegistry>("slices", "{of: window_attention, scored: alone}"), InputError);
  EXPECT_THROW(make_part<ScorerRegistry>("blocks", "{of: expected_attention}"), InputError);
}

// Against the rounds written out: the mean of normalised keys of what stays and the next block.
TEST(Blocks, EachJoinsWhatStaysSoFar) {
  RandomLayer layer({1, 2, 2, 8, 16}, 1, 40, 36);
  auto blocks = make_part<ScorerRegistry>("blocks", "{of: key_diversity, block_tokens: 7}");
  LayerStep step = layer.prompt_step(0);
  Floats scores = scored(*blocks, step);
  Ints keep{12, 12};
  blocks->refine(step, keep.data(), scores.data());
  EXPECT_EQ(keep, (Ints{12, 12}));
  for (std::int32_t h = 0; h < 2; ++h) {
    const auto key = [&](std::int32_t i) { return &nth(layer.k[0], (i * 2 + h) * 8); };
    const auto norm = [&](std::int32_t i) { return std::sqrt(dot(key(i), key(i), 8)); };
    Ints stays = range(0, 12);
    for (std::int32_t at = 12; at < 40; at += 7) {
      for (std::int32_t i = at; i < std::min(40, at + 7); ++i) stays.push_back(i);
      std::vector<double> mean(8);
      for (const std::int32_t i : stays)
        for (std::int32_t c = 0; c < 8; ++c) nth(mean, c) += static_cast<double>(key(i)[c]) / norm(i);
      const auto likeness = [&](std::int32_t i) { return dot(mean.data(), key(i), 8) / norm(i); };
      std::sort(stays.begin(), stays.end(), [&](std::int32_t a, std::int32_t b) { return likeness(a) < likeness(b); });
      stays.resize(12);
    }
    for (std::int32_t i = 0; i < 40; ++i)
      EXPECT_EQ(nth(scores, h * 40 + i) != -kInfinity, std::count(stays.begin(), stays.end(), i) == 1) << h << " " << i;
  }
}

TEST(Chunks, APromptShorterThanAChunkIsCutByToken) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 15, 31);
  auto chunks = make_part<ScorerRegistry>("chunks", "{of: key_norm, chunk_tokens: 16, budget_of_chunks: true, peer_ties: true}");
  chunks->set_budget({0, 0.4});
  LayerStep step = layer.prompt_step(0);
  Floats scores = scored(*chunks, step);
  EXPECT_EQ(scores, scored(*make_part<ScorerRegistry>("key_norm"), step));
  Ints keep{6, 6};
  chunks->refine(step, keep.data(), scores.data());
  EXPECT_EQ(keep, (Ints{6, 6}));
}

TEST(EntropyChunks, OfAConcentratedChunkAFewTokensStay) {
  RandomLayer layer({1, 1, 1, 8, 16}, 1, 12, 37);
  auto chunks = make_part<ScorerRegistry>("entropy_chunks", "{of: key_norm, chunk_tokens: 4, peaked_tokens: 2}");
  LayerStep step = layer.prompt_step(0);
  // Means 10, 5, 1; the first chunk has most of its sum in one token, so that its entropy is the least.
  Floats scores{30, 6, 3, 1, 5, 5, 5, 5, 1, 1, 1, 1};
  Ints keep{7};
  chunks->refine(step, keep.data(), scores.data());
  EXPECT_EQ(keep, (Ints{7}));
  Ints stays;
  for (const float x : scores) stays.push_back(x == -kInfinity ? 0 : 1);
  EXPECT_EQ(Ints(stays.begin(), stays.begin() + 8), (Ints{1, 1, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(std::accumulate(stays.begin(), stays.end(), 0), 7);
  EXPECT_THROW(make_part<ScorerRegistry>("entropy_chunks", "{chunk_tokens: 4, peaked_tokens: 4}"), InputError);
}

TEST(Cur, LeverageOfOneOrBoth) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 20, 38);
  LayerStep step = layer.prompt_step(0);
  const auto of = [&](const std::string& leverage) {
    return scored(*make_part<ScorerRegistry>("cur", "{relative_to: prompt, leverage: " + leverage + "}"), step);
  };
  const Floats key = of("key"), value = of("value"), product = of("product"), mean = of("mean");
  const float *const k = layer.k[0].data(), *const v = layer.v[0].data();
  const double products = dot(key.data(), value.data(), 20), key_norms = dot(k, k, 20 * 8), value_norms = dot(v, v, 20 * 8);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(product[i], static_cast<double>(key[i]) * static_cast<double>(value[i]) / products, 1e-6);
    const double sum = static_cast<double>(key[i]) * key_norms + static_cast<double>(value[i]) * value_norms;
    EXPECT_NEAR(mean[i], sum / (key_norms + value_norms), 1e-6);
  }
}

TEST(OutputAware, TheFirstStageOfTheBudgetComesBeforeTheCounts) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 40, 33);
  const Floats w_o = RandomLayer::normals(16 * 32, 5, 9);
  LayerStep step = layer.prompt_step(0);
  step.in.w_o = w_o.data();
  auto aware = make_part<ScorerRegistry>("output_aware", "{of: key_norm, first_stage: of_budget}");
  aware->set_budget({0, 0.33});
  const Floats raw = scored(*make_part<ScorerRegistry>("key_norm"), step);
  Floats scores = scored(*aware, step);
  const auto marked = [](const Floats& x, std::ptrdiff_t head) {
    return std::count(x.begin() + 40 * head, x.begin() + 40 * (head + 1), kInfinity);
  };
  for (const std::ptrdiff_t h : {0, 1}) {
    EXPECT_EQ(marked(scores, h), 6) << "int(0.33 * 40 * 0.5), where half of the 13 tokens that stay are 6 as well";
    const auto best = std::max_element(raw.begin() + 40 * h, raw.begin() + 40 * (h + 1));
    EXPECT_EQ(nth(scores, best - raw.begin()), kInfinity);
  }
  const Floats before = scores;
  Ints keep{13, 13};
  aware->refine(step, keep.data(), scores.data());
  EXPECT_EQ(scores, before) << "no second first stage";
  aware->set_budget({0, 0.475});
  EXPECT_EQ(marked(scored(*aware, step), 0), 9) << "0.475 * 40 * 0.5 = 9.5";
  aware->set_budget({0, 0.01});
  EXPECT_EQ(marked(scored(*aware, step), 0), 1) << "at least one";
}

TEST(Ada, TakesAtLeastOneTokenOfEachHead) {
  ScoredModel m({1, 2, 2, 8, 16}, 1, 20, 0, 3);
  for (std::size_t i = 0; i < 40; ++i) m.scores[0][i] = i < 20 ? 10.0F + static_cast<float>(i) : 1.0F;
  auto ada = make_part<AllocatorRegistry>("ada", "{safeguard_frac: 0.2, safeguard: forced_first}");  // a fifth of 3 tokens is none
  m.allocate(*ada);
  EXPECT_EQ(m.keep[0], (Ints{5, 1}));
}

TEST(Pyramid, KeepsAToken) {
  auto pyramid = make_part<AllocatorRegistry>("pyramid", "{beta: 20, window_tokens: 64, rounding: kvpress}");
  pyramid->set_budget({0, 0.001, true});
  EXPECT_EQ(pyramid->expected({8, 8, 2, 64, 384}, 3, 0, 1, 257), 1);
}

TEST(Table, SharesOfThePromptAndTheirRemainders) {
  const ModelShape model{2, 4, 2, 8, 16};
  auto down = make_part<AllocatorRegistry>("table", "{unit: prompt_frac, values: \"0=0.37 1=0.001\"}");
  EXPECT_EQ(down->expected(model, 0, 0, 50, 101), 37);
  EXPECT_EQ(down->expected(model, 1, 1, 50, 101), 1) << "at least one";
  auto rest = make_part<AllocatorRegistry>("table", "{unit: prompt_frac, rounding: largest_remainder, values: \"0.0=0.302 0.1=0.506\"}");
  // 30.502 and 51.106 are 82 together: the token that is left goes to head 0.
  EXPECT_EQ(rest->expected(model, 0, 0, 50, 101), 31);
  EXPECT_EQ(rest->expected(model, 0, 1, 50, 101), 51);
  EXPECT_THROW(make_part<AllocatorRegistry>("table", "{rounding: largest_remainder, values: \"0=1\"}"), InputError);
}

TEST(LayerGlobal, TheFirstLayerHasTheLargestEntriesOfAll) {
  ScoredModel m({3, 4, 2, 8, 16}, 1, 30, 0, 10);
  for (float& x : m.scores[0]) x *= 1e-3F;  // the first layer alone would keep nothing
  auto plain = make_part<AllocatorRegistry>("layer_global"), kvpress = make_part<AllocatorRegistry>("layer_global", "{counts: kvpress}");
  m.allocate(*plain);
  EXPECT_EQ(m.keep[0][0], 0);
  kvpress->set_budget({0, 0.34});
  m.allocate(*kvpress);
  EXPECT_GE(m.keep[0][0], std::max(m.keep[1][0], m.keep[2][0]));
  EXPECT_EQ(m.keep[0][0] + m.keep[1][0] + m.keep[2][0], 30) << "int(90 * 0.34), where three layers of int(30 * 0.34) are 30 too";
}

TEST(Global, RoundsWhatIsKeptOrWhatIsDropped) {
  ScoredModel m({3, 4, 2, 8, 16}, 1, 33, 0, 10);
  for (const auto& [rounding, tokens] : {std::pair{"whole", 62}, {"whole_kept", 61}}) {  // of 198; 61.38 stay
    auto global = make_part<AllocatorRegistry>("global", std::string("{rounding: ") + rounding + "}");
    global->set_budget({0, 0.31});
    m.allocate(*global);
    EXPECT_EQ(m.kept_in_model(0), tokens) << rounding;
  }
}

TEST(ScoreThreshold, TheLastTokensStayWhateverTheirScore) {
  ScoredModel m({1, 2, 2, 8, 16}, 1, 20, 0, 20);
  for (std::size_t i = 0; i < 40; ++i) m.scores[0][i] = i % 20 < 3 ? 2.0F : 0.0F;
  auto threshold = make_part<AllocatorRegistry>("score_threshold", "{min_score: 1, recent_tokens: 5}");
  std::vector<ScoredLayer> all{m.scored(0)};
  all[0].marks = m.scores[0].data();
  threshold->allocate(m.ops(), m.model, m.layers[0]->seqs, all);
  EXPECT_EQ(m.keep[0], (Ints{8, 8}));
  EXPECT_EQ(m.scores[0][19], kInfinity);
}

// The scorer's share follows from the counts, so no scores are there to mark when the allocator runs.
TEST(FixedTokens, AreRefusedWhereTheScorerProtectsAShare) {
  const std::string h2o = "{recipe: h2o, budget_tokens: 64, scorer: {accumulated_attention: {recent_frac: ";
  const auto refused = testing::ThrowsMessage<InputError>(testing::HasSubstr("give scorer 'accumulated_attention' 'recent_frac: 0'"));
  EXPECT_THAT([&] { recipe_of(h2o + "0.5}}, allocator: {score_threshold: {recent_tokens: 4}}}"); }, refused);
  EXPECT_THAT([&] { recipe_of(h2o + "0.5}}, allocator: {ada: {ties: critical_adakv}}}"); }, refused);
  EXPECT_THAT([&] { recipe_of(h2o + "0.5}}, allocator: {ada: {layers: {score_threshold: {recent_tokens: 4}}}}}"); }, refused);
  EXPECT_NO_THROW(recipe_of(h2o + "0}}, allocator: {score_threshold: {recent_tokens: 4}}}"));
  EXPECT_NO_THROW(recipe_of(h2o + "0.5}}, allocator: {score_threshold: {recent_tokens: 0}}}"));
  EXPECT_NO_THROW(recipe_of(h2o + "0.5}}, allocator: ada}"));
}

TEST(Ada, RefusesScorersThatRankAnewWhereItChoosesTheTokens) {
  const auto refused = testing::ThrowsMessage<InputError>(testing::HasSubstr("first_stage: of_budget"));
  EXPECT_THAT([] { recipe_of("{recipe: kvpress_adakv, scorer: {output_aware: {of: key_diversity}}}"); }, refused);
  EXPECT_THAT([] { recipe_of("{recipe: kvpress_adakv, scorer: {composite: {of: {output_aware: {of: key_diversity}}}}}"); }, refused);
  EXPECT_NO_THROW(recipe_of("{recipe: kvpress_adakv, scorer: {output_aware: {of: key_diversity, first_stage: of_budget}}}"));
  EXPECT_NO_THROW(recipe_of("{recipe: kvpress_critical_adakv, scorer: {output_aware: {of: key_diversity}}}"));
}

}  // namespace
}  // namespace kvlab::test
