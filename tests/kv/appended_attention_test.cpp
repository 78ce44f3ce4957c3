// Passes after each chunk of a prompt: what is appended, what serving charges, and layers' shares by measured cosines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "policies/kv/forward_passes.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "tests/error_of.h"
#include "tests/recipes_in.h"

namespace kvlab::test {
namespace {

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
      PolicyWork work;
      footprint.charge(batch, work);
      ASSERT_EQ(work.passes.size(), 1U) << name;
      EXPECT_EQ(work.passes[0].new_tokens, tokens) << name;
      EXPECT_EQ(work.passes[0].kv_tokens, batch[0].new_tokens + (i == 0 ? 0 : 100)) << name;
      const FootprintStep done = footprint.step(batch[0]);
      EXPECT_EQ(done.held_tokens, 100) << name;
      seq = done.after(batch[0]);
    }
    std::vector<SeqState> decode{seq.taking(1)};
    PolicyWork work;
    footprint.charge(decode, work);
    EXPECT_TRUE(work.passes.empty()) << name;
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
