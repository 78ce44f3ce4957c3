// Sequences packed between steps as their format stores them: the same outputs, bit for bit, in as many bytes as are counted.
#include <gtest/gtest.h>

#include "tests/engine/cache_steps.h"
#include "tests/engine/packed_recipes.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

// Two sequences with everything in pages, and the same ones packed.
struct PackedPair : CachePair {
  explicit PackedPair(const Recipe& recipe) : CachePair(recipe, {.packs = true}) {}
};

class PackedCache : public testing::TestWithParam<std::string> {};

TEST_P(PackedCache, AnswersAsFromPagesInTheBytesThatAreCounted) {
  const std::string name = GetParam();
  if (left_out_of_short_run(name)) GTEST_SKIP() << kLeftOut;
  PackedPair pair(load_recipe(name, load_recipe(name).has_budget ? 140 : 0));
  pair.step(230, 160);
  pair.compare();
  const ModelConfig& c = probe().config();
  const std::int64_t rows = std::int64_t{c.layers} * c.kv_heads, divisors = rows * divisor_bytes(name, c.head_dim);
  EXPECT_EQ(pair.other.pages().used_pages() > 0, stays_in_pages(name));
  if (stays_in_pages(name)) return;
  const auto check = [&](double most_apart) {
    for (EngineSequence* s : {&pair.other_a, &pair.other_b}) {
      const std::int64_t counted = counted_kv(pair.other, *s) + divisors, held = pair.other.held(*s).kv;
      EXPECT_NEAR(static_cast<double>(held), static_cast<double>(counted), most_apart * static_cast<double>(counted));
    }
  };
  // Counted: the mean share of salient tokens over sequences, and the mean size of their codes.
  check(name.starts_with("zipvl") || name == "dfloat11" ? 0.02 : 0);
  for (std::int32_t i = 0; i < (short_run() ? 22 : 75); ++i) pair.step(1, 1);
  pair.compare();
  // A row's length does not tell how many of its tokens decode encoded in blocks of their own, or left dense: they count as the prompt's.
  const bool is_estimate = name == "gear" || name == "zipcache" || name.starts_with("zipvl") || name == "kvpress_think" ||
                           name == "dfloat11" || name.starts_with("kvquant");
  check(is_estimate ? 0.15 : 0);
  pair.other.release(pair.other_a);
  pair.other.release(pair.other_b);
  EXPECT_EQ(pair.other.pages().used_pages(), 0);
}

INSTANTIATE_TEST_SUITE_P(Recipes, PackedCache, testing::ValuesIn(packed_recipes()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

// Prompts in chunks, encoded as they come; later pieces of several tokens.
TEST(PackedCache, PromptsInChunks) {
  for (const char* name : {"fp8", "int4_per_channel", "zipcache"}) {
    PackedPair pair(load_recipe(name));
    pair.step(130, 60);
    pair.step(100, 100);
    EXPECT_EQ(pair.other.pages().used_pages(), 0) << name;
    pair.step(7, 1);
    pair.step(0, 12);
    pair.compare();
  }
}

// Blocks of decode that differ in nothing but the divisors of their channels.
TEST(PackedCache, EachBlockKeepsItsDivisors) {
  PackedPair pair(recipe_of("{recipe: full, format: {zipcache: {salient_bits: 4, other_bits: 4, salient_frac: 1, block_tokens: 20}}}"));
  pair.step(230, 160);
  for (std::int32_t i = 0; i < 45; ++i) pair.step(1, 1);
  pair.compare();
  EXPECT_EQ(pair.other.pages().used_pages(), 0);
}

// Tokens that were encoded are evicted: the rows go back to pages and stay there.
TEST(PackedCache, RowsThatLoseEncodedTokensStayInPages) {
  for (const char* text : {"{recipe: h2o, budget_tokens: 120, format: {cast: {type: fp8_e4m3}}}",
                           "{recipe: tova, budget_tokens: 120, format: {kivi: {group_tokens: 16, residual_tokens: 16}}}",
                           "{recipe: adakv, budget_tokens: 120, format: {per_token: {bits: 8}}}"}) {
    PackedPair pair(recipe_of(text));
    pair.step(130, 0);
    pair.step(100, 60);
    pair.step(0, 100);
    for (std::int32_t i = 0; i < 20; ++i) pair.step(1, 1);
    pair.compare();
    EXPECT_GT(pair.other.pages().used_pages(), 0) << text;
  }
}

// Keys in 8 bits and values in 4, zero and scale of 16 numbers in 32 bits. Of 230 tokens 224 keys and 198 values are encoded, the others
// are in float32.
TEST(PackedCache, KeysAndValuesOfDifferentBits) {
  PackedPair pair(recipe_of("{recipe: full, format: {kivi: {key_bits: 8, value_bits: 4, group_tokens: 16, residual_tokens: 32}}}"));
  pair.step(230, 160);
  pair.compare();
  const ModelConfig& c = probe().config();
  const std::int64_t d = c.head_dim, dense = 4 * d, row = 224 * d * (8 + 2) / 8 + 6 * dense + 198 * d * (4 + 2) / 8 + 32 * dense;
  EXPECT_EQ(pair.other.held(pair.other_a).kv, c.layers * c.kv_heads * row);
  EXPECT_EQ(counted_kv(pair.other, pair.other_a), c.layers * c.kv_heads * row);
  for (std::int32_t i = 0; i < 40; ++i) pair.step(1, 1);
  pair.compare();
}

// A scale of 4 bytes for each token, or for each side of a row.
TEST(PackedCache, ScalesOfFp8) {
  const ModelConfig& c = probe().config();
  for (const std::string scale : {"token", "head", "tensor"}) {
    PackedPair pair(recipe_of("{recipe: full, format: {scaled_fp8: {scale: " + scale + "}}}"));
    pair.step(230, 160);
    pair.compare();
    const std::int64_t side = 230 * c.head_dim + (scale == "token" ? 230 * 4 : 4);
    EXPECT_EQ(pair.other.held(pair.other_a).kv, c.layers * c.kv_heads * 2 * side) << scale;
    EXPECT_EQ(counted_kv(pair.other, pair.other_a), c.layers * c.kv_heads * 2 * side) << scale;
    for (std::int32_t i = 0; i < 20; ++i) pair.step(1, 1);
    pair.compare();
  }
}

TEST(PackedCache, MemoryIsReallyFreed) {
  PackedPair pair(recipe_of("{recipe: full, format: {kivi: {bits: 2, residual_tokens: 32}}}"));
  pair.step(230, 160);
  const PolicyCache::HeldBytes paged = pair.paged.held(pair.a), packed = pair.other.held(pair.other_a);
  EXPECT_LT(3 * packed.kv, paged.kv);
  EXPECT_EQ(packed.beside, 4 * 2 * 230 * std::int64_t{probe().config().layers} * probe().config().kv_heads);  // a position and a mark each
}

}  // namespace
}  // namespace kvlab
