// Passes that run after each chunk of a prompt, over the cut cache of the engine's model.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/cache/policy_cache.h"
#include "engine/model/record.h"
#include "tests/engine/cache_steps.h"
#include "tests/recipes_in.h"

namespace kvlab {
namespace {

const std::vector<std::string> kChunkPassRecipes{"streammem", "epicache"};

EngineSequence chunked_sequence(std::int32_t prompt) { return sequence_of(0, some_ids(prompt + 8, 3), prompt); }

// A budget of the prompt or more: each chunk and each decode step as with the full cache, bit for bit.
TEST(ChunkPasses, ALargeBudgetIsPlainChunkedPrefill) {
  for (const std::string& name : kChunkPassRecipes) {
    CacheRun full(load_recipe("full"), chunked_sequence(250)), cut(load_recipe(name, 250), chunked_sequence(250));
    for (const std::int32_t tokens : {100, 100, 50, 1, 1})
      EXPECT_EQ(full.run(tokens), cut.run(tokens)) << name << " at " << cut.s.seen_tokens;
    EXPECT_EQ(cut.cache.positions(cut.s), full.cache.positions(full.s)) << name;
    ASSERT_NE(cut.s.pass, nullptr);
    EXPECT_EQ(cut.s.pass->chunks.front().ctx_end, 250) << name;
  }
}

// After each chunk rows hold the budget; what the pass appended leaves neither tokens nor pages.
TEST(ChunkPasses, RowsHoldTheBudgetAfterEachChunk) {
  for (const std::string& name : kChunkPassRecipes) {
    CacheRun run(load_recipe(name, 60), chunked_sequence(250));
    PolicyCache& cache = run.cache;
    EngineSequence& s = run.s;
    for (const std::int32_t tokens : {100, 100, 50}) {
      run.run(tokens);
      const std::vector<std::vector<std::int32_t>> held = cache.positions(s);
      std::int64_t pages = 0;
      for (const std::vector<std::int32_t>& row : held) {
        EXPECT_EQ(row.size(), 60U) << name;
        EXPECT_TRUE(std::is_sorted(row.begin(), row.end())) << name;
        EXPECT_LT(row.back(), s.seen_tokens) << name;
        pages += (std::ssize(row) + 15) / 16;
      }
      EXPECT_EQ(cache.pages().used_pages(), pages) << name;
      for (std::size_t row = 0; name == "streammem" && row < held.size(); row += 2) EXPECT_EQ(held[row], held[row + 1]);
      EXPECT_EQ(s.pass->chunks, (std::vector<PassChunk>{{0, s.pass->num_tokens, 0, s.seen_tokens}})) << name;
    }
    cache.release(s);
    EXPECT_EQ(cache.pages().used_pages(), 0);
  }
}

// The queries of a pass over a cut cache are those of the same tokens as the end of a prompt over that cache.
TEST(ChunkPasses, AppendedTokensSeeTheCutCacheAndTheChunk) {
  const std::vector<std::int32_t> appended = byte_answer_template();
  const auto count = static_cast<std::int32_t>(appended.size());
  PolicyCache cache(probe(), load_recipe("streammem", 60), {}), other(probe(), load_recipe("streammem", 60), {});
  EngineSequence a = chunked_sequence(250), b = chunked_sequence(300);
  b.ids.assign(a.ids.begin(), a.ids.begin() + 200);
  b.ids.insert(b.ids.end(), appended.begin(), appended.end());
  b.ids.resize(308, 40);
  cache.start(a);
  other.start(b);
  run_step(cache, {{&a, 120}});
  run_step(other, {{&b, 120}});
  ASSERT_EQ(cache.positions(a), other.positions(b));
  run_step(cache, {{&a, 80}});
  const StepPiece piece{&b, 80 + count};
  std::vector<std::int32_t> positions;
  for (std::int32_t i = 120; i < 200 + count; ++i) positions.push_back(i);
  std::vector<LayerTensors> layers(8);
  const RecordOptions options;
  RecordingHost host(other, probe().config(), options, piece.new_tokens, layers);
  other.begin_step({&piece, 1});
  const std::vector<float> hidden = probe().forward({std::span(b.ids).subspan(120, positions.size()), positions}, host);
  other.end_step(hidden);
  ASSERT_EQ(a.pass->ids, appended);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::vector<float>& q = a.pass->layers[l].q;
    ASSERT_EQ(q.size(), static_cast<std::size_t>(count) * 512);
    for (std::size_t i = 0; i < q.size(); ++i) ASSERT_NEAR(q[i], layers[l].q[80 * 512 + i], 1e-3) << "layer " << l;
  }
}

// Two prompts and a decoding sequence in one step: each as if it were alone.
TEST(ChunkPasses, SequencesOfABatchHaveTheirOwn) {
  const Recipe recipe = load_recipe("streammem", 60);
  PolicyCache cache(probe(), recipe, {});
  EngineSequence a = chunked_sequence(150), b = sequence_of(1, some_ids(260, 5), 250), c = sequence_of(2, some_ids(60, 7), 40);
  cache.start(a), cache.start(b), cache.start(c);
  run_step(cache, {{&c, 40}});
  run_step(cache, {{&a, 100}, {&c, 1}, {&b, 120}});
  run_step(cache, {{&b, 130}, {&a, 50}});
  CacheRun alone(recipe, sequence_of(0, b.ids, 250));
  alone.run(120);
  alone.run(130);
  EXPECT_EQ(cache.positions(b), alone.cache.positions(alone.s));
}

// A prompt in one piece: the same whether it ran through the cache or was adopted from a plain pass.
TEST(ChunkPasses, AnAdoptedPromptIsAPromptThatRan) {
  for (const std::string& name : kChunkPassRecipes) {
    CacheRun ran(load_recipe(name, 64), chunked_sequence(200)), adopted(load_recipe(name, 64), chunked_sequence(200));
    ran.run(200);
    adopted.adopt(200);
    EXPECT_EQ(ran.cache.positions(ran.s), adopted.cache.positions(adopted.s)) << name;
    EXPECT_EQ(ran.run(1), adopted.run(1)) << name;
  }
}

}  // namespace
}  // namespace kvlab
