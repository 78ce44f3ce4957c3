// Prompts that lose tokens between layers: counts, scores by hand, and what the cost host and serving charge.
#include "policies/kv/prompt_pruner/prompt_pruner.h"

#include <gmock/gmock.h>

#include <bit>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/score/head_scores_op.h"
#include "kernels/score/pool1d_op.h"
#include "policies/kv/policy/policy.h"
#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

using ::testing::HasSubstr;

constexpr ModelShape kDeepModel{32, 32, 8, 128, 4096}, kSixLayers{6, 4, 2, 64, 128};

SeqStep whole_prompt(std::int32_t tokens) { return {0, 0, tokens, tokens, -1}; }

std::vector<std::int32_t> tokens_by_layer(const Recipe& recipe, const ModelShape& model, std::int32_t prompt) {
  const KvPolicy policy(recipe, model);
  std::vector<std::int32_t> tokens;
  for (std::int32_t l = 0; l < model.num_layers; ++l) tokens.push_back(policy.step_tokens(whole_prompt(prompt), l));
  return tokens;
}

// Layers 0 to 13 compute all tokens, the others the 1,024 best and the last one.
TEST(PromptPruner, PromptDistillSelectsOnce) {
  std::vector<std::int32_t> expected(14, 8192);
  expected.resize(32, 1025);
  EXPECT_EQ(tokens_by_layer(load_recipe("promptdistill"), kDeepModel, 8192), expected);
  EXPECT_EQ(tokens_by_layer(load_recipe("promptdistill"), kDeepModel, 1000), std::vector<std::int32_t>(32, 1000));
  EXPECT_EQ(
      tokens_by_layer(recipe_of("{recipe: promptdistill, prompt_pruner: {prompt_distill: {stages: 0.34=0.5 0.5=100}}}"), kSixLayers, 800),
      (std::vector<std::int32_t>{800, 800, 401, 101, 101, 101}));
}

// Layer l of 6 keeps the share 0.9 + 0.1 (cos(pi l / 6) + 1) / 2 of the context tokens that reached it, at first 799; 201 recent ones stay.
TEST(PromptPruner, PyramidInferKeepsAShareInEachLayer) {
  std::vector<std::int32_t> expected{1000};
  for (int l = 0; l < 5; ++l)
    expected.push_back(static_cast<std::int32_t>((expected.back() - 201) * (0.9 + 0.05 * (std::cos(M_PI * l / 6) + 1))) + 201);
  EXPECT_EQ(expected[1], 1000);
  EXPECT_LT(expected[5], 900);
  EXPECT_EQ(tokens_by_layer(load_recipe("pyramidinfer"), kSixLayers, 1000), expected);
  EXPECT_EQ(tokens_by_layer(load_recipe("pyramidinfer"), kSixLayers, 80), std::vector<std::int32_t>(6, 80));  // 64 or fewer would be left
}

// 2,000 tokens are a first block, 26 blocks of 64, and 272 at the end. 60 % are 1,200 tokens: 13 blocks beside the ends.
TEST(PromptPruner, SlimInferKeepsWholeBlocks) {
  const std::int32_t ends = 64 + 272;
  EXPECT_EQ(tokens_by_layer(load_recipe("sliminfer"), kSixLayers, 2000),
            (std::vector<std::int32_t>{2000, 2000, ends + 13 * 64, ends + 7 * 64, ends + 2 * 64, ends + 2 * 64}));
  EXPECT_EQ(tokens_by_layer(load_recipe("sliminfer"), kSixLayers, 300), std::vector<std::int32_t>(6, 300));
}

// Two sequences of different lengths, two KV heads with two query heads each.
struct PrunerRows {
  static constexpr std::int32_t kHeads = 2, kGroup = 2, kDim = 8;
  KvStore store;
  std::vector<std::int32_t> tokens{70, 37};
  std::vector<std::vector<float>> q, k;
  std::vector<std::int64_t> first{0};

  explicit PrunerRows(std::int32_t words = 0) : store(ModelShape{1, kHeads * kGroup, kHeads, kDim, 16}, 2, words, true) {
    for (std::int32_t s = 0; s < 2; ++s) {
      const std::int32_t n = tokens[static_cast<std::size_t>(s)];
      const auto fill = [&](std::int32_t width, int salt) {
        std::vector<float> x(static_cast<std::size_t>(n * width));
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.7F * static_cast<float>(i * i % 101) + static_cast<float>(s + salt));
        return x;
      };
      q.push_back(fill(kHeads * kGroup * kDim, 1)), k.push_back(fill(kHeads * kDim, 2));
      store.append(s, k.back().data(), k.back().data(), n, 0);
      first.push_back(first.back() + n);
    }
  }
  [[nodiscard]] std::vector<Queries> last(std::int32_t count) const {
    std::vector<Queries> queries;
    for (std::size_t s = 0; s < 2; ++s) {
      const std::int32_t skipped = tokens[s] - count;
      queries.push_back({q[s].data() + skipped * kHeads * kGroup * kDim, count, skipped});
    }
    return queries;
  }
  // Logits of query t, head h, with the tokens up to its own.
  [[nodiscard]] std::vector<double> logits(std::size_t s, std::int32_t t, std::int32_t h) const {
    std::vector<double> z;
    for (std::int32_t i = 0; i <= t; ++i)
      z.push_back(dot(&nth(q[s], (t * kHeads * kGroup + h) * kDim), &nth(k[s], (i * kHeads + h / kGroup) * kDim), kDim) / std::sqrt(kDim));
    return z;
  }
};

TEST(PromptPruner, HeadLogitsAreMeansOfProducts) {
  PrunerRows rows;
  std::vector<float> out(static_cast<std::size_t>(rows.first.back()));
  const std::vector<Queries> last = rows.last(1);
  run_cpu(HeadScores{rows.store.rows(), last.data(), rows.first.data(), out.data(), HeadScores::Kind::kLogits});
  for (std::size_t s = 0; s < 2; ++s)
    for (std::int32_t i = 0; i < rows.tokens[s]; ++i) {
      double mean = 0;
      for (std::int32_t h = 0; h < 4; ++h) mean += nth(rows.logits(s, rows.tokens[s] - 1, h), i) / 4;
      EXPECT_NEAR(out[static_cast<std::size_t>(rows.first[s] + i)], mean, 1e-5) << s << " " << i;
    }
}

TEST(PromptPruner, RecentAttentionWeighsLaterQueriesMore) {
  PrunerRows rows;
  std::vector<float> out(static_cast<std::size_t>(rows.first.back()));
  constexpr std::int32_t kCount = 30;  // more than the queries that one strip holds
  const std::vector<Queries> last = rows.last(kCount);
  run_cpu(AttentionStats{.kv = rows.store.rows(), .queries = last.data(), .votes = {1.5F, rows.first.data(), out.data()}});
  for (std::size_t s = 0; s < 2; ++s) {
    std::vector<double> expected(static_cast<std::size_t>(rows.tokens[s]), 0);
    for (std::int32_t t = 0; t < kCount; ++t) {
      const std::int32_t query = rows.tokens[s] - kCount + t;
      for (std::int32_t h = 0; h < 4; ++h) {
        const std::vector<double> p = softmax(rows.logits(s, query, h));
        for (std::size_t i = 0; i < p.size(); ++i) expected[i] += (1 + 0.5 * t / (kCount - 1)) * p[i] / (4 * kCount);
      }
    }
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(out[static_cast<std::size_t>(rows.first[s]) + i], expected[i], 1e-5) << s << " " << i;
  }
}

// Groups of 4 from position 20 on; 10 votes each. The last token gets none, and those before position 20 none.
TEST(PromptPruner, GroupsGetVotesFromLaterQueries) {
  PrunerRows rows(1);
  const std::vector<std::int32_t> base{20, 20}, recent{10, 10};
  const std::vector<Queries> last = rows.last(17);
  for (int again = 0; again < 2; ++again)  // votes add up
    run_cpu(AttentionStats{.kv = rows.store.rows(), .queries = last.data(), .votes = {1.5F, {}, {}, base.data(), recent.data(), 4}});
  const KvRows kv = rows.store.rows();
  for (std::int32_t r = 0; r < 4; ++r) {
    const std::int32_t s = r / 2, n = rows.tokens[static_cast<std::size_t>(s)];
    for (std::int32_t i = 0; i < n; ++i) {
      const std::int32_t end = 20 + ((i - 20) / 4 + 1) * 4;
      double expected = 0;
      for (std::int32_t t = std::max(end, n - 17); i >= 20 && t < std::min(n, end + 10); ++t)
        for (std::int32_t h = 0; h < 4; ++h)
          expected += 2 * (1 + 0.5 * (t - end) / 9) * nth(softmax(rows.logits(static_cast<std::size_t>(s), t, h)), i) / 4;
      EXPECT_NEAR(std::bit_cast<float>(kv.word(0, r, i)), expected, 1e-5) << r << " " << i;
    }
  }
}

// After every 16 decoded tokens layer l of 6 keeps floor(16 0.9 (0.1 + 0.9 (cos(pi l / 6) + 1) / 2)) of a group: 14, 13, 11, 7, 4, 2.
TEST(PromptPruner, PyramidInferCutsGroupsInDecode) {
  const Recipe recipe = load_recipe("pyramidinfer");
  ShapeRun run(recipe, kSixLayers);
  ShapeRun::Seq seq{0, 300, 300, {}, {}};
  seq.held = run.step(std::span(&seq, 1)).held;
  seq.seen_tokens = 300, seq.new_tokens = 1;
  const std::vector<std::int32_t> prompt = seq.held;
  const std::vector<std::int32_t> kept{14, 13, 11, 7, 4, 2};
  for (std::int32_t decoded = 1; decoded <= 40; ++decoded) {
    seq.held = run.step(std::span(&seq, 1)).held;
    ++seq.seen_tokens;
    for (std::size_t r = 0; r < seq.held.size(); ++r)
      ASSERT_EQ(seq.held[r], prompt[r] + decoded - decoded / 16 * (16 - kept[r / 2])) << decoded << " row " << r;
  }
}

TEST(PromptPruner, UnitScoresAreTheBestUnitsMean) {
  std::vector<float> scores{9, 1, 3, 8, 0, 5, 5, 7, 7, 9};
  const std::vector<std::int64_t> first{0, 10};
  const std::int32_t begin = 1, len = 8;
  run_cpu(Pool1d{1, first.data(), &begin, &len, scores.data(), 4, Pool1d::Kind::kBestUnit, false, 2});
  EXPECT_EQ(scores, (std::vector<float>{9, 4, 4, 4, 4, 7, 7, 7, 7, 9}));
}

// Later layers hold fewer tokens, by as many bytes, and prompts of all tokens make no call.
TEST(PromptPruner, LaterLayersHoldLess) {
  for (const char* name : {"promptdistill", "pyramidinfer", "sliminfer"}) {
    const Recipe recipe = load_recipe(name);
    ShapeRun run(recipe, kSixLayers);
    const ShapeRun::Seq seq{0, 2000, 2000, {}, {}};
    const ShapeRun::Result prompt = run.step(std::span(&seq, 1));
    const std::vector<std::int32_t> tokens = tokens_by_layer(recipe, kSixLayers, 2000);
    std::int64_t all = 0;
    for (std::size_t l = 0; l < 6; ++l) {
      EXPECT_EQ(prompt.held[2 * l], tokens[l]) << name << " layer " << l;
      EXPECT_EQ(prompt.held[2 * l + 1], tokens[l]) << name << " layer " << l;
      all += tokens[l];
    }
    EXPECT_LT(all, 6 * 2000) << name;
    const bool votes = name == std::string("pyramidinfer");                         // in decode, from statistics that begin in the prompt
    EXPECT_EQ(prompt.after.gpu, all * 2 * (2 * 64 * 2 + (votes ? 8 : 4))) << name;  // K, V, positions and statistics
    EXPECT_EQ(run.policy().most_tokens(whole_prompt(2000)), 2 * all) << name;
    EXPECT_FALSE(prompt.calls.empty()) << name;
    const ShapeRun::Seq next{2000, 1, 2000, prompt.held, {}};
    EXPECT_NEAR(run.step(std::span(&next, 1)).attended_tokens, static_cast<double>(all) / 6 + 1, 1e-6) << name;
    const ShapeRun::Seq brief{0, 50, 50, {}, {}};
    EXPECT_EQ(ShapeRun(recipe, kSixLayers).step(std::span(&brief, 1)).calls.empty(), !votes) << name;
  }
}

TEST(PromptPruner, ServingChargesFewerTokensOfLaterLayers) {
  RecipeFootprint footprint(load_recipe("sliminfer"), kSixLayers, 16);
  std::vector<SeqState> batch{SeqState{40, 30, 40}.taking(1), SeqState{0, 200}.taking(200), SeqState{0, 2000}.taking(2000)};
  const PolicyWork work = work_of(footprint, batch);
  ASSERT_EQ(work.pruned.size(), 1U);
  EXPECT_EQ(work.pruned[0].place, 2U);
  EXPECT_EQ(work.pruned[0].tokens, tokens_by_layer(load_recipe("sliminfer"), kSixLayers, 2000));
  EXPECT_TRUE(footprint.step(batch[2]).leaves_hashed);
  EXPECT_FALSE(footprint.shares_prefixes());
}

TEST(PromptPruner, PromptsComeInOnePiece) {
  RecipeFootprint footprint(load_recipe("sliminfer"), kSixLayers, 16);
  const std::string error = error_of([&] { footprint.step(SeqState{0, 2000}.taking(512)); });
  EXPECT_THAT(error,
              HasSubstr("recipe 'sliminfer' prunes prompts and takes each in one piece, but a step has tokens 0 to 512 of a prompt of "
                        "2000"));
  EXPECT_THAT(error, HasSubstr("vllm_v0"));
  EXPECT_EQ(error_of([&] { footprint.step(SeqState{512, 2000, 512}.taking(1488)); }).substr(0, 18), "recipe 'sliminfer'");
}

TEST(PromptPruner, RefusesWhatItCannotGoWith) {
  EXPECT_THAT(error_of([] { recipe_of("{recipe: snapkv, prompt_pruner: pyramid_infer}"); }),
              HasSubstr("recipe 'snapkv' cannot run: prompt_pruner 'pyramid_infer' goes with trigger 'never'"));
  EXPECT_THAT(error_of([] { recipe_of("{recipe: kivi2, prompt_pruner: pyramid_infer}"); }), HasSubstr("format 'native'"));
  EXPECT_THAT(error_of([] { recipe_of("{recipe: full, prompt_pruner: pyramid_inferr}"); }), HasSubstr("did you mean 'pyramid_infer'?"));
  EXPECT_THAT(error_of([] { recipe_of("{recipe: full, prompt_pruner: {prompt_distill: {stages: 0.5}}}"); }),
              HasSubstr("'0.5' in 'stages': expected DEPTH=TOKENS"));
  EXPECT_THAT(error_of([] { recipe_of("{recipe: full, prompt_pruner: {prompt_distill: {stages: 1.5=100}}}"); }),
              HasSubstr("'1.5=100' in 'stages': expected DEPTH=TOKENS"));
  const Recipe pruned = recipe_of("{recipe: full, prompt_pruner: pyramid_infer}");
  EXPECT_FALSE(pruned.runs_in("replay"));
  EXPECT_EQ(std::tuple(pruned.keeps_everything(), pruned.prefix_reuse), std::tuple(false, Recipe::PrefixReuse::kNone));
  EXPECT_TRUE(recipe_of("{recipe: promptdistill, prompt_pruner: none}").keeps_everything());
}

}  // namespace
}  // namespace kvlab::test
