#include <cstring>
#include <numeric>

#include "engine/model/record.h"
#include "tests/engine/cache_steps.h"
#include "tests/engine/stored_recipes.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

// Prompts in chunks and decoding sequences in one step: what a plain forward pass computes.
TEST(PolicyCache, FullCacheIsTheModel) {
  PolicyCache cache(probe(), load_recipe("full"), {});
  EngineSequence a = sequence_of(0, some_ids(150, 3), 120), b = sequence_of(1, some_ids(97, 5), 90);
  cache.start(a);
  cache.start(b);
  KvState plain_a(probe().config()), plain_b(probe().config());
  const std::vector<float> all_a = forward_logits(probe(), a.ids, plain_a), all_b = forward_logits(probe(), b.ids, plain_b);
  const auto check = [&](const std::vector<StepPiece>& pieces) {
    const std::vector<float> logits = run_step(cache, pieces);
    std::size_t at = 0;
    for (const StepPiece& p : pieces) {
      const std::int32_t end = p.sequence->seen_tokens;
      const std::span<const float> expected = logits_of(p.sequence == &a ? all_a : all_b, end - p.new_tokens, p.new_tokens);
      EXPECT_LE(largest_difference(std::span(logits).subspan(at, expected.size()), expected), 2e-4);
      at += expected.size();
    }
  };
  check({{&a, 50}});
  check({{&a, 33}, {&b, 40}});
  check({{&b, 50}, {&a, 37}});
  check({{&a, 1}, {&b, 1}});
  check({{&b, 3}, {&a, 20}});  // several known tokens in one decode step
  EXPECT_EQ(cache.pages().used_pages(), 8 * 2 * ((141 + 15) / 16 + (94 + 15) / 16));
  cache.release(a);
  cache.release(b);
  EXPECT_EQ(cache.pages().used_pages(), 0);
}

// A policy that acts at the prompt's end: the same whether the prompt ran through the cache or was adopted from a plain pass.
TEST(PolicyCache, AdoptedPromptIsAPromptThatRan) {
  for (const char* name :
       {"snapkv", "h2o", "adakv", "kivi2", "quest", "expected_attention", "kvzip", "kvgrad", "laq", "cake", "streaming"}) {
    const Recipe recipe = load_recipe(name, name == std::string("kivi2") ? 0 : 64);
    CacheRun ran(recipe, sequence_of(0, some_ids(210, 3), 200)), adopted(recipe, sequence_of(0, some_ids(210, 3), 200), {.packs = true});
    ran.run(200);
    adopted.adopt(200);
    for (std::size_t l = 0; l < ran.s.rows.size(); ++l) EXPECT_EQ(ran.s.rows[l].len, adopted.s.rows[l].len) << name << " layer " << l;
    for (std::int32_t i = 0; i < 5; ++i) EXPECT_EQ(ran.run(1), adopted.run(1)) << name << " step " << i;
    EXPECT_EQ(ran.cache.resident(ran.s), adopted.cache.resident(adopted.s)) << name;
  }
}

// Values written by touch_memory() have no effect, later steps find the memory in its place, and pages in use are never overwritten.
TEST(PolicyCache, TouchedMemoryIsThatOfTheSteps) {
  PolicyCache::Options options;
  options.reserved_pages = 1000;
  PolicyCache touched(probe(), load_recipe("full"), options), fresh(probe(), load_recipe("full"), options);
  touched.touch_memory(probe(), 256);
  const float* const memory = touched.pass_memory(probe().pass_floats(256)).data();
  EngineSequence a = sequence_of(0, some_ids(240, 3), 230), b = sequence_of(0, some_ids(240, 3), 230);
  touched.start(a);
  fresh.start(b);
  for (const std::int32_t tokens : {150, 80, 1}) EXPECT_EQ(run_step(touched, {{&a, tokens}}), run_step(fresh, {{&b, tokens}}));
  EXPECT_EQ(touched.pass_memory(1).data(), memory);
  EXPECT_THROW(touched.touch_memory(probe(), 256), InternalError);
}

// Evicted tokens are in CPU memory, each with its own keys and values, and exactly with the bytes that are counted there.
TEST(PolicyCache, OffloadedTokensAreReallyThere) {
  CacheRun run(load_recipe("h2o_offload", 64), sequence_of(0, some_ids(240, 3), 230));
  PolicyCache& cache = run.cache;
  EngineSequence& s = run.s;
  const PromptTensors prompt = run_prompt(probe(), std::span(s.ids).first(230), cache.policy().needs(), {});
  cache.adopt(s, prompt);
  const std::vector<std::vector<std::int32_t>> kept = cache.positions(s);
  const auto d = static_cast<std::size_t>(probe().config().head_dim), heads = static_cast<std::size_t>(probe().config().kv_heads);
  ASSERT_EQ(s.offloaded.size(), kept.size());
  for (std::size_t row = 0; row < kept.size(); ++row) {
    const EngineSequence::Offloaded& offloaded = s.offloaded[row];
    std::vector<std::int32_t> all = kept[row];
    all.insert(all.end(), offloaded.position.begin(), offloaded.position.end());
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all, consecutive(0, 230));
    const LayerTensors& layer = prompt.layers[row / heads];
    std::vector<float> kv(offloaded.kv.size() / sizeof(float));
    std::memcpy(kv.data(), offloaded.kv.data(), offloaded.kv.size());
    for (std::size_t i = 0; i < offloaded.position.size(); ++i) {
      const std::size_t from = (static_cast<std::size_t>(offloaded.position[i]) * heads + row % heads) * d;
      ASSERT_TRUE(std::equal(kv.begin() + static_cast<std::ptrdiff_t>(2 * i * d), kv.begin() + static_cast<std::ptrdiff_t>((2 * i + 1) * d),
                             layer.k.begin() + static_cast<std::ptrdiff_t>(from)));
      ASSERT_TRUE(std::equal(kv.begin() + static_cast<std::ptrdiff_t>((2 * i + 1) * d),
                             kv.begin() + static_cast<std::ptrdiff_t>(2 * (i + 1) * d),
                             layer.v.begin() + static_cast<std::ptrdiff_t>(from)));
    }
  }
  EXPECT_EQ(cache.held(s).host, cache.resident(s).host);
  for (std::int32_t i = 0; i < 8; ++i) run.run(1);
  EXPECT_EQ(cache.held(s).host, cache.resident(s).host);
  EXPECT_EQ(s.offloaded.front().position.size(), 238U - 64U);
}

TEST(PolicyCache, RefusesRecipesOfOtherHosts) { EXPECT_THROW(PolicyCache(probe(), load_recipe("oracle", 64), {}), InputError); }

// Passes that run after each chunk of a prompt, over the cut cache of the engine's model.

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
  const PieceBatch batch({{&b, 80 + count}});
  std::vector<LayerTensors> layers(8);
  const RecordOptions options;
  RecordingHost host(other, probe().config(), options, 80 + count, layers);
  other.begin_step(batch.pieces);
  other.end_step(probe().forward(batch.tokens(), host));
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

// Sequences packed between steps as their format stores them: the same outputs, bit for bit, in as many bytes as are counted.

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

INSTANTIATE_TEST_SUITE_P(Recipes, PackedCache, testing::ValuesIn(packed_recipes()), [](const auto& info) { return info.param; });

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
