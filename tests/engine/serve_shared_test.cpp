// Prefixes that several requests have in common: policies decide as if each had computed its own.
#include <gtest/gtest.h>

#include "policies/kv/policy/policy.h"
#include "tests/engine/packed_recipes.h"
#include "tests/engine/serve_fixture.h"
#include "tests/engine/small_model.h"
#include "tests/engine/tiered_recipes.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

using test::serve_all;
using test::Served;
using test::served_shape;
using test::small_model;
using test::SomeRequest;

// Prompts of 120 to 170 tokens, the first 112 the same; the first is done before the others come.
std::vector<SomeRequest> alike_requests() {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 6; ++i) requests.push_back(test::with_hashes({i == 0 ? 0 : 500 + 30.0 * i, 120 + 10 * i, 24}, i, 7));
  return requests;
}

// Small enough to cut and to choose among so few tokens.
Recipe shared_recipe(const std::string& name) {
  if (lies_lower(load_recipe(name), served_shape(small_model()))) return small_tiered(name);
  const std::map<std::string, std::int32_t> least{
      {"duo", 80}, {"layer_table", 64}, {"lazy_eviction", 150}, {"citrus", 200}, {"triattention", 150}};
  const std::int32_t budget = least.contains(name) ? least.at(name) : 48;
  return load_recipe(name, load_recipe(name).has_budget ? budget : 0);
}

class ServeShared : public testing::TestWithParam<std::string> {};

TEST_P(ServeShared, PrefixesOfOthersChangeNoToken) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const Recipe recipe = shared_recipe(GetParam());
  // If little of a token is on the GPU, blocks are small, and data that is always there fills many.
  const std::int64_t blocks = GetParam().starts_with("retrieval_attention") ? 60000 : 4000;
  ServeSetup setup = test::serve_setup(small_model(), recipe, "vllm_v1", "{}", blocks);
  const Served shared = serve_all(setup, alike_requests());
  EXPECT_EQ(shared.summary.latencies.completed, 6U);
  const KvPolicy policy(recipe, served_shape(small_model()));
  EXPECT_EQ(shared.summary.hit_tokens > 0, policy.shares_prefixes() && policy.fresh_tokens() <= 170 - 16);  // a block of the longest prompt
  setup.memory.prefix_caching = false;
  const Served alone = serve_all(setup, alike_requests());
  EXPECT_EQ(alone.summary.hit_tokens, 0);
  EXPECT_EQ(shared.tokens, alone.tokens);
}

// Recipes that store tokens as the model computes them; of others, others find what was decoded.
std::vector<std::string> lossless_recipes() {
  std::vector<std::string> names = recipes_in({"engine", "cost"});
  std::erase_if(names, [](const std::string& name) { return is_packed(shipped_recipe(name)); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(Recipes, ServeShared, testing::ValuesIn(lossless_recipes()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab
