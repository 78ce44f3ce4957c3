#include "policies/kv/prompt_rewriter/prompt_rewriter.h"

#include <gmock/gmock.h>

#include <array>
#include <set>

#include "policies/kv/policy/policy.h"
#include "policies/kv/prompt_rewriter/question_cosine/question_cosine.h"
#include "policies/kv/prompt_rewriter/quota_select_op.h"
#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

// Prompts that are replaced by some of their tokens: the choice by hand, counts, and what serving charges.

using ::testing::HasSubstr;

constexpr ModelShape kRewriterModel{6, 4, 2, 32, 64};

Recipe small_ilre(const std::string& more = "") {
  return recipe_of(
      "{recipe: ilre, prompt_rewriter: {ilre: {depth_frac: 0.35, tokens: 200, first_tokens: 8, last_tokens: 20, chunk_tokens: 256, "
      "sinks_tokens: 16, window_tokens: 64" +
      more + "}}}");
}

std::vector<std::int32_t> selected(std::int32_t first_end, std::int32_t last_begin, std::int32_t kept,
                                   const std::vector<std::int32_t>& widths, const std::vector<float>& scores) {
  std::vector<std::int32_t> index(static_cast<std::size_t>(kept), -1);
  run_cpu(QuotaSelect{static_cast<std::int32_t>(scores.size()), first_end, last_begin, kept, widths.data(),
                      static_cast<std::int32_t>(widths.size()), scores.data(), index.data()});
  return index;
}

// Scores 9 at token 6 and 5 at token 11. Width 1 takes 6 and 11; width 3 those next to 6, the largest of three; both ends stay.
TEST(QuotaSelect, WidthsTakeTheirSharesInTurn) {
  std::vector<float> scores(16, 0);
  scores[6] = 9, scores[11] = 5, scores[3] = 4, scores[15] = 100;
  const std::vector<std::int32_t> widths{1, 3};
  EXPECT_EQ(selected(2, 14, 8, widths, scores), (std::vector<std::int32_t>{0, 1, 5, 6, 7, 11, 14, 15}));
  // An odd token goes to the first width: token 3.
  EXPECT_EQ(selected(2, 14, 9, widths, scores), (std::vector<std::int32_t>{0, 1, 3, 5, 6, 7, 11, 14, 15}));
}

// With random scores: exactly `kept` different tokens, the ends among them, and every width's tokens are the best that were left.
TEST(QuotaSelect, AgreesWithASearchForOneTokenAtATime) {
  for (const std::int32_t n : {40, 301}) {
    const std::vector<float> scores = sample_normals(static_cast<std::size_t>(n), 40 + static_cast<std::uint64_t>(n));
    const std::vector<std::int32_t> widths{1, 5, 33};
    for (const std::int32_t kept : {9, 25, 40}) {
      std::set<std::int32_t> taken;
      for (std::int32_t i = 0; i < n; ++i)
        if (i < 3 || i >= n - 5) taken.insert(i);
      std::int32_t left = kept - 8;
      for (std::int32_t w = 0; w < 3; ++w) {
        const std::int32_t quota = left / (3 - w) + (left % (3 - w) > 0 ? 1 : 0), half = nth(widths, w) / 2;
        for (std::int32_t q = 0; q < quota; ++q) {
          std::int32_t best = -1;
          float most = 0;
          for (std::int32_t i = 0; i < n; ++i) {
            if (taken.contains(i)) continue;
            const auto end = scores.begin() + std::min(n, i + half + 1);
            const float largest = *std::max_element(scores.begin() + std::max(0, i - half), end);
            if (best < 0 || largest > most) best = i, most = largest;
          }
          taken.insert(best);
        }
        left -= quota;
      }
      EXPECT_EQ(selected(3, n - 5, kept, widths, scores), std::vector<std::int32_t>(taken.begin(), taken.end()))
          << n << " tokens, " << kept << " kept";
    }
  }
}

TEST(QuestionCosine, IsTheLargestOverTheQuestionOfTheMeanOverVectors) {
  constexpr std::int32_t n = 300, d = 8, question = 290;
  std::vector<float> a = sample_normals(n * d, 1), b = sample_normals(n * d, 2), out(n);
  std::fill_n(a.begin() + 7 * d, d, 0.0F);  // has cosine 0 with all
  const std::vector<const float*> vectors{a.data(), b.data()};
  run_cpu(QuestionCosine{n, question, d, vectors, out.data()});
  const auto cosine = [&](const std::vector<float>& x, std::int32_t i, std::int32_t t) {
    const float *const p = &nth(x, i * d), *const q = &nth(x, t * d);
    const double own = dot(p, p, d), other = dot(q, q, d);
    return own == 0 ? 0.0 : dot(p, q, d) / std::sqrt(own * other);
  };
  for (std::int32_t i = 0; i < n; ++i) {
    double most = -2;
    for (std::int32_t t = question; t < n; ++t) most = std::max(most, (cosine(a, i, t) + cosine(b, i, t)) / 2);
    EXPECT_NEAR(nth(out, i), most, 1e-5) << "token " << i;
  }
}

// 200 tokens in all, the question among them; its ends are 8 + 20 and the question. A prompt that is not longer stays whole.
TEST(PromptRewriter, TheBudgetHasTheQuestionInIt) {
  const KvPolicy policy(small_ilre(), kRewriterModel);
  const auto tokens = [&](std::int32_t prompt, std::int32_t question) {
    return policy.step_tokens({0, 0, prompt, prompt, prompt - question}, 3);
  };
  EXPECT_EQ(tokens(1000, 32), 200);
  EXPECT_EQ(tokens(200, 32), 200);
  EXPECT_EQ(tokens(150, 32), 150);
  EXPECT_EQ(tokens(1000, 190), 8 + 20 + 190);
  EXPECT_EQ(policy.most_tokens({0, 0, 1000, 1000, 968}), 6 * 2 * 200);
}

// Two full chunks and a rest; the second and third see sinks and window, 80 tokens. The last layer counts as a whole one.
TEST(PromptRewriter, ServingChargesTheScanAndFewerTokens) {
  RecipeFootprint footprint(small_ilre(), kRewriterModel, 16);
  std::vector<SeqState> batch{SeqState{0, 150}.taking(150), SeqState{0, 600}.taking(600)};
  const PolicyWork work = work_of(footprint, batch);
  ASSERT_EQ(work.pruned.size(), 1U);
  EXPECT_EQ(work.pruned[0].place, 1U);
  EXPECT_EQ(work.pruned[0].tokens, std::vector<std::int32_t>(6, 200));
  using Pass = std::array<std::int64_t, 3>;
  std::vector<Pass> passes;
  for (const ForwardPass& p : work.passes) passes.push_back({p.new_tokens, p.kv_tokens, p.layers});
  EXPECT_EQ(passes, (std::vector<Pass>{{256, 0, 3}, {256, 80, 3}, {88, 80, 3}}));
  const auto launches = [&](std::string_view name) {
    for (const PolicyOp& op : work.ops)
      if (op.name == name) return op.launches;
    return std::int64_t{0};
  };
  EXPECT_EQ(launches("quota_select"), 1);
  EXPECT_EQ(launches("recent_attention"), 1);
  EXPECT_EQ(launches("top_k"), 3 * 2);  // the scan's cache, in two layers after each chunk
  const FootprintStep done = footprint.step(batch[1]);
  EXPECT_EQ(std::tuple(done.leaves_hashed, done.held_tokens), std::tuple(true, 200));
  EXPECT_FALSE(footprint.shares_prefixes());
}

TEST(PromptRewriter, AShortPromptCostsNothing) {
  RecipeFootprint footprint(small_ilre(), kRewriterModel, 16);
  const SeqState whole = SeqState{0, 200}.taking(200);
  EXPECT_TRUE(work_of(footprint, whole).empty());
  EXPECT_FALSE(footprint.step(whole).leaves_hashed);
}

TEST(PromptRewriter, PromptsComeInOnePiece) {
  RecipeFootprint footprint(small_ilre(), kRewriterModel, 16);
  EXPECT_THAT(error_of([&] {
                footprint.step(SeqState{0, 600}.taking(256));
              }),
              HasSubstr("recipe 'ilre' rewrites prompts and takes each in one piece, but a step has tokens 0 to 256 of a prompt of 600"));
}

// The scan ends at the deepest vector's layer; its cache is cut to 300 tokens.
TEST(PromptRewriter, ReformScansToItsDeepestVector) {
  const Recipe recipe = recipe_of(
      "{recipe: full, prompt_rewriter: {reform: {vectors: 1.q.3 3.v.1, tokens: 400, first_tokens: 10, last_tokens: 20, chunk_tokens: 500, "
      "cache_tokens: 300}}}");
  EXPECT_EQ(recipe.prefix_reuse, Recipe::PrefixReuse::kNone);
  EXPECT_FALSE(recipe.runs_in("replay"));
  RecipeFootprint footprint(recipe, kRewriterModel, 16);
  const PolicyWork work = work_of(footprint, SeqState{0, 1000}.taking(1000));
  ASSERT_EQ(work.passes.size(), 2U);
  EXPECT_EQ(std::tuple(work.passes[1].kv_tokens, work.passes[1].layers), std::tuple(300, 4));
  EXPECT_EQ(work.pruned[0].tokens, std::vector<std::int32_t>(6, 400));
}

TEST(PromptRewriter, RefusesWhatItCannotGoWith) {
  EXPECT_THAT(error_of([] { recipe_of("{recipe: snapkv, prompt_rewriter: ilre}"); }),
              HasSubstr("recipe 'snapkv' cannot run: prompt_rewriter 'ilre' goes with trigger 'never'"));
  EXPECT_THAT(error_of([] { recipe_of("{recipe: ilre, prompt_pruner: pyramid_infer}"); }), HasSubstr("write 'prompt_pruner: none'"));
  EXPECT_THAT(error_of([] { recipe_of("{recipe: full, prompt_rewriter: {ilre: {pool_widths: 1 4}}}"); }),
              HasSubstr("'pool_widths' are odd numbers"));
  EXPECT_THAT(error_of([] { recipe_of("{recipe: full, prompt_rewriter: {reform: {vectors: 1.x.0}}}"); }),
              HasSubstr("'1.x.0' in 'vectors': expected LAYER.KIND.HEAD"));
  EXPECT_THAT(error_of([] { KvPolicy(load_recipe("ilre"), {1, 4, 2, 32, 64}); }), HasSubstr("the model has one layer"));
  EXPECT_THAT(error_of([] { KvPolicy(recipe_of("{recipe: full, prompt_rewriter: {reform: {vectors: 2.k.2}}}"), kRewriterModel); }),
              HasSubstr("head 2 of layer 2, which the model does not have"));
  EXPECT_TRUE(recipe_of("{recipe: ilre, prompt_rewriter: none}").keeps_everything());
}

// Passes after each chunk of a prompt: what is appended, what serving charges, and layers' shares by measured cosines.

using ::testing::HasSubstr;

constexpr ModelShape kAppendedModel{4, 4, 2, 32, 64};

// Windows 0, 1 and 3 have the same tokens, 2 and 4 others: the first two of those alike are the most typical ones.
TEST(TypicalWindows, AreMostLikeTheMeanOfAll) {
  const std::vector<std::int32_t> ids{1, 2, 3, 2, 1, 3, 7, 8, 9, 3, 2, 1, 4, 5, 6, 1};
  PassSizes sizes;
  sizes.windows = 2, sizes.window_tokens = 3;
  const PromptWindows chosen = typical_windows(ids, sizes);
  EXPECT_EQ(chosen.begin, (std::vector<std::int32_t>{0, 3}));
  EXPECT_EQ(chosen.tokens, 3);
  EXPECT_EQ(pass_shapes("windows", 16, 9, sizes), (std::vector<PassShape>{{6, 9, 0, 9}}));
  sizes.windows = 8;
  EXPECT_EQ(typical_windows(ids, sizes).begin, (std::vector<std::int32_t>{0, 3, 6, 9, 12}));
  EXPECT_EQ(typical_windows(std::span(ids).first(2), sizes).tokens, 2);
  EXPECT_TRUE(typical_windows({}, sizes).begin.empty());
}

// 600 tokens in chunks of 256: a pass after each of three, over what was kept before and the chunk.
TEST(AppendedAttention, ServingChargesAPassAfterEachChunk) {
  for (const auto& [name, tokens] : std::vector<std::pair<std::string, std::int32_t>>{{"streammem", 16}, {"epicache", 256}}) {
    RecipeFootprint footprint(load_recipe(name, 100), kAppendedModel, 16);
    SeqState seq{0, 600};
    for (std::int32_t i = 0; i < 3; ++i) {
      std::vector<SeqState> batch{seq.taking(i < 2 ? 256 : 88)};
      const PolicyWork work = work_of(footprint, batch);
      ASSERT_EQ(work.passes.size(), 1U) << name;
      EXPECT_EQ(work.passes[0].new_tokens, tokens) << name;
      EXPECT_EQ(work.passes[0].kv_tokens, batch[0].new_tokens + (i == 0 ? 0 : 100)) << name;
      const FootprintStep done = footprint.step(batch[0]);
      EXPECT_EQ(done.held_tokens, 100) << name;
      seq = done.after(batch[0]);
    }
    EXPECT_TRUE(work_of(footprint, seq.taking(1)).passes.empty()) << name;
  }
}

TEST(AppendedAttention, DoesNotRunInReplay) {
  for (const char* name : {"streammem", "epicache"}) EXPECT_FALSE(load_recipe(name).runs_in("replay"));
}

// Cosines 0.9, 0.5, 0.8, 0.9: normalised 1, 0, 0.75, 1; weights 0, 1, 0.25, 0 with power 1. Layers 0 and 3 have the least of 25 tokens; the
// others share 350 by weight.
TEST(KeySimilarityLayers, LayersThatChangeMoreGetMore) {
  const Recipe recipe = recipe_of(
      "{recipe: epicache, budget_tokens: 100, allocator: {key_similarity_layers: {similarity: 0=0.9 1=0.5 2=0.8 3=0.9, power: 1}}}");
  const auto allocator = recipe.make_allocator();
  std::vector<std::int32_t> tokens;
  for (std::int32_t l = 0; l < 4; ++l) tokens.push_back(allocator->expected(kAppendedModel, l, 0, 100, 1000));
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{25, 280, 70, 25}));
  for (std::int32_t l = 0; l < 4; ++l) EXPECT_EQ(allocator->expected(kAppendedModel, l, 0, 1000, 1000), 1000);
  EXPECT_EQ(load_recipe("epicache").make_allocator()->expected(kAppendedModel, 2, 0, 100, 1000), 100);
}

TEST(KeySimilarityLayers, RefusesAListThatLacksALayer) {
  EXPECT_THAT(error_of([] {
                KvPolicy(recipe_of("{recipe: epicache, allocator: {key_similarity_layers: {similarity: 0=0.9 1=0.5}}}"), kAppendedModel);
              }),
              HasSubstr("'similarity' has no value for layer 2"));
}

}  // namespace
}  // namespace kvlab::test
