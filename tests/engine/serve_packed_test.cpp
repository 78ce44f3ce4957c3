// Sequences packed between steps of a server: the same tokens as with blocks of decoded KV, in the bytes that are counted.
#include <gtest/gtest.h>

#include "tests/engine/packed_recipes.h"
#include "tests/engine/serve_fixture.h"
#include "tests/engine/tiered_recipes.h"

namespace kvlab {
namespace {

using test::serve_all;
using test::Served;
using test::served_setup;
using test::served_shape;
using test::SomeRequest;

// Prompts of 90 to 190 tokens of which no two begin alike; with prefix_caching their blocks have names.
std::vector<SomeRequest> unlike_requests(double gap_ms) {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 8; ++i) requests.push_back(test::with_hashes({gap_ms * i, 90 + 25 * (i % 5), 40 + i % 3}, i));
  return requests;
}

// Small enough to choose among, and to encode some, of a few hundred tokens.
Recipe small_recipe(const std::string& name) {
  if (name == "snapkv_kivi2") return recipe_of("{recipe: snapkv_kivi2, budget_tokens: 64, format: {kivi: {bits: 2, residual_tokens: 32}}}");
  return lies_lower(load_recipe(name), served_shape(test::served_model())) ? small_tiered(name)
                                                                           : load_recipe(name, load_recipe(name).has_budget ? 64 : 0);
}

class ServeAtRest : public testing::TestWithParam<const char*> {};

TEST_P(ServeAtRest, TokensAreThoseOfDecodedBlocksInTheBytesThatAreCounted) {
  const std::string name = GetParam();
  const Recipe recipe = small_recipe(name);
  ServeSetup setup = served_setup(recipe, "sarathi", "{budget_tokens: 64}", 400);
  const Served decoded = serve_all(setup, unlike_requests(20));
  const bool leaves_blocks = recipe.prefix_reuse == Recipe::PrefixReuse::kFullCopy;
  const bool finds_nothing = !KvPolicy(recipe, served_shape(test::served_model())).shares_prefixes();  // and so rests from the start
  EXPECT_EQ(decoded.summary.remark.starts_with("8 of 8 sequences lay decoded"), !leaves_blocks && !finds_nothing) << decoded.summary.remark;

  setup.memory.prefix_caching = false;
  const bool on_tiers = lies_lower(recipe, served_shape(test::served_model()));
  const double block_bytes = recipe_pages(recipe, served_shape(test::served_model()), 16).token_bytes * 16;
  std::int64_t plans_at_rest = 0, most_host = 0;
  setup.inspect = [&](const ReplicaState& state, const StepExecutor& executor) {
    EXPECT_EQ(executor.pages().used_pages(), executor.explained_pages());
    EXPECT_EQ(executor.block_pages(), 0) << "nobody finds them";
    const PolicyCache::HeldBytes held = executor.held();
    most_host = std::max(most_host, held.host);
    if (on_tiers || executor.pages().used_pages() > 0 || held.kv == 0) return;  // a prompt is on its way, or nothing is
    ++plans_at_rest;
    const double counted = block_bytes * static_cast<double>(state.used_blocks());
    EXPECT_LE(static_cast<double>(held.kv), 1.05 * counted);
  };
  const Served at_rest = serve_all(setup, unlike_requests(20));
  EXPECT_EQ(std::tuple(at_rest.summary.latencies.completed, at_rest.tokens, at_rest.summary.remark), std::tuple(8U, decoded.tokens, ""));
  EXPECT_EQ(plans_at_rest > 20, !on_tiers);
  EXPECT_EQ(most_host > 0, on_tiers);
}

INSTANTIATE_TEST_SUITE_P(Recipes, ServeAtRest,
                         testing::Values("kivi2", "fp8", "gear", "mustafar50", "qserve_kv4", "mikv", "snapkv_kivi2", "infinigen",
                                         "shadowkv", "kcache", "leoam"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ServeSwapped, SequencesAtRestComeBackAsTheyWere) {
  struct Case {
    const char* recipe;
    std::int64_t num_blocks;
  };
  for (const Case& c : {Case{"kivi2", 160}, Case{"gear", 60}, Case{"snapkv_kivi2", 60}, Case{"infinigen", 52}}) {
    SCOPED_TRACE(c.recipe);
    const Recipe recipe = small_recipe(c.recipe);
    ServeSetup setup = served_setup(recipe, "vllm_v0", "{preemption: swap}", 400);
    setup.memory.prefix_caching = false;
    const Served calm = serve_all(setup, unlike_requests(1000));
    setup.memory.num_blocks = c.num_blocks;
    setup.inspect = test::expect_explained_pages;
    const Served pressed = serve_all(setup, unlike_requests(1));
    EXPECT_GT(pressed.summary.swaps, 0U);
    EXPECT_EQ(pressed.tokens, calm.tokens);
  }
}

}  // namespace
}  // namespace kvlab
