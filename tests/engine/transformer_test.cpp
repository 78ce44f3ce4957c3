#include "engine/model/transformer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "tests/engine/probe.h"
#include "tests/error_of.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

std::vector<std::int32_t> prompt(int index, std::size_t tokens) {
  std::vector<std::int32_t> ids = golden_logits().ints(std::to_string(index) + ".ids");
  ids.resize(std::min(tokens, ids.size()));
  return ids;
}

class GoldenPrompt : public testing::TestWithParam<int> {};

// Both sides compute in float32 and add in different orders; logits are of order 10. The largest difference seen is 6e-5.
constexpr float kLogitTolerance = 2e-4F;

TEST_P(GoldenPrompt, LogitsAndGreedyTokensAreTheReferences) {
  if (GetParam() == 2 && short_run()) GTEST_SKIP() << "2,866 tokens take too long with KVLAB_SHORT set";
  const SafetensorsFile golden = golden_logits();
  const std::string at = std::to_string(GetParam()) + ".";
  const std::vector<std::int32_t> ids = golden.ints(at + "ids");
  const std::int32_t vocab = probe().config().vocab_size;
  KvState kv(probe().config());
  std::vector<float> logits = forward_logits(probe(), ids, kv);
  const float worst = largest_difference(logits, golden.floats(at + "logits", {static_cast<std::int64_t>(ids.size()), vocab}));
  RecordProperty("max_difference", std::to_string(worst));
  EXPECT_LE(worst, kLogitTolerance);
  std::vector<std::int32_t> decoded;
  for (int step = 0; step < 64; ++step) {
    decoded.push_back(greedy_token(logits, vocab));
    logits = forward_logits(probe(), {&decoded.back(), 1}, kv);
  }
  EXPECT_EQ(decoded, golden.ints(at + "greedy"));
}

INSTANTIATE_TEST_SUITE_P(Prompts, GoldenPrompt, testing::Values(0, 1, 2));

// Pieces of one and of many tokens, around the attention's blocks of 32 tokens.
TEST(TransformerTest, ChunkedPrefillEqualsUnchunked) {
  const std::vector<std::int32_t> ids = prompt(1, 140);
  KvState whole(probe().config());
  const std::vector<float> expected = forward_logits(probe(), ids, whole);
  for (const std::size_t chunk : {31U, 33U, 128U}) {
    KvState kv(probe().config());
    const std::vector<float> logits = in_chunks(probe(), ids, chunk, kv);
    EXPECT_EQ(kv.tokens, 140);
    EXPECT_LE(largest_difference(logits, expected), kLogitTolerance) << "chunks of " << chunk;
    EXPECT_LE(largest_difference(kv.k[7], whole.k[7]), kLogitTolerance);
  }
}

TEST(TransformerTest, DecodingStepByStepEqualsPrefill) {
  const std::vector<std::int32_t> ids = prompt(0, 40);
  KvState whole(probe().config()), stepped(probe().config());
  const std::vector<float> expected = forward_logits(probe(), ids, whole);
  EXPECT_LE(largest_difference(in_chunks(probe(), ids, 1, stepped), expected), kLogitTolerance);
}

TEST(TransformerTest, ACutStateGoesOnAsIfTheRestHadNeverBeen) {
  const std::vector<std::int32_t> ids = prompt(0, 20);
  KvState kv(probe().config()), fresh(probe().config());
  forward_logits(probe(), std::span(ids).first(10), kv);
  forward_logits(probe(), std::span(ids).first(10), fresh);
  forward_logits(probe(), std::span(ids).last(5), kv);
  kv.truncate(10);
  EXPECT_EQ(kv.k[3], fresh.k[3]);
  EXPECT_EQ(forward_logits(probe(), std::span(ids).subspan(10, 3), kv), forward_logits(probe(), std::span(ids).subspan(10, 3), fresh));
  EXPECT_THROW(kv.truncate(14), InternalError);
}

TEST(TransformerTest, NoTokensDoNothing) {
  KvState kv(probe().config());
  EXPECT_TRUE(forward_logits(probe(), {}, kv).empty());
  EXPECT_EQ(kv.tokens, 0);
}

TEST(TransformerTest, IdsOutsideTheVocabularyAreRefused) {
  KvState kv(probe().config());
  for (const std::int32_t id : {-1, 264}) {
    const std::vector<std::int32_t> ids{256, id};
    EXPECT_EQ(error_of([&] { forward_logits(probe(), ids, kv); }),
              "token 1 has id " + std::to_string(id) + ", outside [0, 264) of model 'probe'");
    EXPECT_EQ(kv.tokens, 0);
  }
}

TEST(GreedyToken, TakesTheLowestOfEqualsInTheLastRow) { EXPECT_EQ(greedy_token(std::vector<float>{9, 0, 0, 1, 4, 4}, 3), 1); }

}  // namespace
}  // namespace kvlab
