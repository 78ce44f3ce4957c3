#include "engine/cache/policy_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "tests/engine/cache_steps.h"

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
      EXPECT_LE(logits_apart(std::span(logits).subspan(at, expected.size()), expected), 2e-4);
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
    std::vector<std::int32_t> expected(230);
    std::iota(expected.begin(), expected.end(), 0);
    ASSERT_EQ(all, expected);
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

}  // namespace
}  // namespace kvlab
