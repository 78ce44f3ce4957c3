// Selectors with tiers: what they leave on the host is there, what a step fetches is what they count, and outputs are those of pages.

#include <set>

#include "tests/engine/cache_steps.h"
#include "tests/engine/stored_recipes.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

ModelShape probe_shape() {
  const ModelConfig& c = probe().config();
  return {c.layers, c.q_heads, c.kv_heads, c.head_dim, c.hidden_dim, 4, {c.rope_base, c.rope_scaling}};
}

// Two sequences with everything in pages, and the same ones on tiers.
struct TieredPair : CachePair {
  explicit TieredPair(const Recipe& recipe) : CachePair(recipe, {.packs = true, .tiers = true, .poisons = true}) {}
  void step(std::int32_t of_a, std::int32_t of_b) {
    CachePair::step(of_a, of_b);
    if (!testing::Test::HasFatalFailure()) compare_traffic();
  }
  // Half of the counted bytes are fetched if keys stay on the GPU that the paper has in CPU memory.
  void compare_traffic() {
    const Traffic counted = other.take_traffic(), moved = other.take_moved();
    const std::string& name = other.policy().recipe().name;
    const bool is_half = name == "sentencekv" || name == "retrieval_attention";
    EXPECT_EQ(moved.fetched_bytes * (is_half ? 2 : 1), counted.fetched_bytes)
        << "after " << a.seen_tokens << " and " << b.seen_tokens << " tokens";
  }
};

class TieredCache : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] std::int64_t tiered_layers(const PolicyCache& cache) const {
    std::int64_t layers = 0;
    for (std::int32_t l = 0; l < cache.shape().num_layers; ++l) layers += cache.policy().lower(l) != Selector::Lower::kNothing ? 1 : 0;
    return layers;
  }
  // Layers with tiers have no pages, and each of their vectors is stored once.
  void check_places(TieredPair& pair) {
    const ModelShape& m = pair.other.shape();
    const std::int64_t layers = tiered_layers(pair.other), line = std::int64_t{m.head_dim} * 4;
    std::int64_t pages = 0;
    for (EngineSequence* s : {&pair.other_a, &pair.other_b}) {
      const std::int64_t dense_pages = (m.num_layers - layers) * m.kv_heads * ((s->seen_tokens + 15) / 16);
      const PolicyCache::HeldBytes held = pair.other.held(*s);
      EXPECT_EQ(held.kv - dense_pages * 16 * 2 * line + held.host, layers * m.kv_heads * s->seen_tokens * 2 * line);
      pages += dense_pages;
    }
    EXPECT_EQ(pair.other.pages().used_pages(), pages);
  }
};

// How many more tokens of a row are on the GPU than are counted there, at least and at most. `decoded` tokens follow a prompt; budgets are
// those of small_tiered().
struct Beyond {
  std::int64_t least, most;
};
Beyond beyond_count(const std::string& name, std::int64_t prompt, std::int64_t decoded) {
  constexpr std::int64_t kGroup = 4;
  if (name == "alisa" || name == "sentencekv" || name == "pqcache") return {0, 0};
  if (name == "shadowkv") return {decoded + prompt % 8, decoded + prompt % 8};  // lengths do not tell what was decoded, and is read too
  // The same, and the question; a frame among the newest 40 tokens counts twice.
  if (name == "rekv") return {-40, decoded + 2 * 16};
  if (name == "a2ats") return {0, kGroup * 24};  // tokens that a step found count as the host's
  if (name == "retrieval_attention" || name == "retrieval_attention_hnsw") return {0, kGroup * 16};
  if (name == "leoam") return {-8, 0};                         // counted is the most that a step can read
  if (name == "magicpig") return {decoded, decoded + prompt};  // tokens that a step samples and decoded ones count as the host's
  if (name == "kcache") return {-kGroup * 64, 0};
  return {-63, 0};  // infinigen
}

// After a decode step: host memory holds what is counted there and on disk, but for what beyond_count() says.
void check_host_bytes(TieredPair& pair) {
  const std::string& name = pair.other.policy().recipe().name;
  for (EngineSequence* s : {&pair.other_a, &pair.other_b}) {
    const ModelShape& m = pair.other.shape();
    std::int64_t vectors = 0;  // of one token, in all layers
    for (std::int32_t l = 0; l < m.num_layers; ++l) {
      const Selector::Lower lower = pair.other.policy().lower(l);
      vectors += m.kv_heads * (lower == Selector::Lower::kKeysAndValues ? 2 : lower == Selector::Lower::kValues ? 1 : 0);
    }
    const TierBytes counted = pair.other.resident(*s);
    std::int64_t bytes = counted.host + counted.disk * (name == "leoam" ? 8 : 1);  // 32 bits of an element, counted as 4
    // Links of the graph, 2 * 16 of 4 bytes for each token but the 16 + 32 on the GPU.
    if (name == "retrieval_attention_hnsw") bytes -= std::int64_t{m.num_layers} * m.kv_heads * (s->seen_tokens - 48) * 2 * 16 * 4;
    if (name == "sentencekv" || name == "retrieval_attention") bytes /= 2;  // values alone
    const std::int64_t token_bytes = vectors * m.head_dim * 4, beyond = bytes - pair.other.held(*s).host;
    const Beyond bounds = beyond_count(name, s->prompt_tokens, s->seen_tokens - s->prompt_tokens);
    EXPECT_GE(beyond, bounds.least * token_bytes) << s->seen_tokens;
    EXPECT_LE(beyond, bounds.most * token_bytes) << s->seen_tokens;
  }
}

TEST_P(TieredCache, AnswersAsFromPagesWithWhatIsCountedFetched) {
  TieredPair pair(small_tiered(GetParam()));
  pair.step(230, 160);
  pair.compare();
  check_places(pair);
  for (std::int32_t i = 0; i < (short_run() ? 6 : 40); ++i) {
    pair.step(1, 1);
    if (HasFatalFailure()) return;
  }
  check_places(pair);
  check_host_bytes(pair);
  pair.step(7, 1);
  pair.step(0, 12);
  pair.step(1, 3);
  pair.compare();
  check_places(pair);
  pair.other.release(pair.other_a);
  EXPECT_EQ(pair.other.held(pair.other_a).host, 0);
  pair.other.release(pair.other_b);
  EXPECT_EQ(pair.other.pages().used_pages(), 0);
}

// Budgets that hold the whole prompt, and then do not.
TEST_P(TieredCache, RowsThatOutgrowTheBudget) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const std::string name = GetParam();
  if (name == "rekv") GTEST_SKIP() << "retrieves once";
  if (name == "magicpig") GTEST_SKIP() << "has no budget";
  TieredPair pair(load_recipe(name, 236));
  pair.step(230, 160);
  for (std::int32_t i = 0; i < (short_run() ? 8 : 20); ++i) {
    pair.step(1, 1);
    if (HasFatalFailure()) return;
  }
  check_places(pair);
}

// Prompts in chunks; one decodes while the other's prompt continues.
TEST_P(TieredCache, PromptsInChunks) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  TieredPair pair(small_tiered(GetParam()));
  pair.step(130, 60);
  EXPECT_GT(pair.other.pages().used_pages(), 0);
  EXPECT_EQ(pair.other.held(pair.other_a).host, 0);
  pair.step(100, 40);
  pair.step(1, 60);
  for (std::int32_t i = 0; i < 4; ++i) pair.step(1, 1);
  pair.compare();
  check_places(pair);
}

// A prompt that is adopted goes down as one that ran.
TEST_P(TieredCache, AdoptedPrompts) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  TieredPair pair(small_tiered(GetParam()));
  PolicyCache& cache = pair.other;
  pair.step(230, 0);
  EngineSequence adopted = sequence_of(1, some_ids(310, 3), 230);
  cache.start(adopted);
  cache.adopt(adopted, run_prompt(probe(), std::span(adopted.ids).first(230), cache.policy().needs(), {}));
  EXPECT_EQ(cache.held(adopted).host, cache.held(pair.other_a).host);
  EXPECT_EQ(cache.held(adopted).kv, cache.held(pair.other_a).kv);
  for (std::int32_t i = 0; i < 5; ++i) EXPECT_EQ(run_step(pair.paged, {{&pair.a, 1}}), run_step(cache, {{&adopted, 1}}));
}

// Recipes that count bytes on a lower tier, and those that really have them there. SpeCache makes its copy in few bits anew from all tokens
// in every step, and InstInfer computes on the device that stores its cache.
TEST(TieredRecipes, AllThatCountALowerTierButThoseToldApart) {
  const ModelShape shape = probe_shape();
  std::vector<std::string> counting, tiered = tiered_recipes(shape);
  for (const std::string& name : recipes_in({"engine"})) {
    const KvPolicy policy(load_recipe(name), shape);
    KvStore store(shape, 1, 0, false);
    store.append(0, nullptr, nullptr, 40000, 0);
    const SeqStep seq{0, 40000, 0, 40000, -1};
    const TierBytes bytes = policy.resident(3, {&seq, 1}, store.rows());
    if (bytes.host + bytes.disk > 0) counting.push_back(name);
  }
  for (const char* apart : {"instinfer", "spe_cache", "spe_cache_1bit"}) tiered.emplace_back(apart);
  std::sort(tiered.begin(), tiered.end());
  EXPECT_EQ(counting, tiered);
}

std::vector<std::string> probe_tiered() { return tiered_recipes(probe_shape()); }
std::string named(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Recipes, TieredCache, testing::ValuesIn(probe_tiered()), named);

}  // namespace
}  // namespace kvlab
