// KV policies whose rows differ in length, in pools: a sequence takes its rows to another replica, which counts patterns of its own.
#include "sim/kv_cost/recipe_footprint.h"
#include "tests/recipes_in.h"
#include "tests/sim/pools_support.h"

namespace kvlab::testing {
namespace {

constexpr ModelShape kPoolsModel{12, 4, 2, 32, 64};

SeqState after_steps(RecipeFootprint& footprint, std::int32_t prompt, std::int32_t decoded) {
  SeqState seq{0, prompt};
  for (std::int32_t next = prompt; decoded >= 0; --decoded, next = 1) seq = footprint.step(seq.taking(next)).after(seq.taking(next));
  return seq;
}

TEST(PoolsPolicy, PatternsCarryOverToAnotherFootprint) {
  for (const char* text :
       {"{recipe: d2o_values, budget_frac: 0.3}", "{recipe: pyramidkv, budget_frac: 0.3}", "{recipe: windowkv, budget_frac: 0.5}"}) {
    const Recipe recipe = recipe_of(text);
    RecipeFootprint from(recipe, kPoolsModel, 16), to(recipe, kPoolsModel, 16);
    for (const std::int32_t prompt : {610, 830, 1200}) after_steps(to, prompt, 3);
    const SeqState seq = after_steps(from, 450, 2);
    ASSERT_GT(seq.pattern, 0) << text;
    SeqState moved = seq;
    moved.pattern = to.pattern_of(from.rows_of(seq.pattern));
    EXPECT_NE(moved.pattern, seq.pattern) << text;
    EXPECT_EQ(to.shape_of(moved.taking(1)).held, from.shape_of(seq.taking(1)).held) << text;
    EXPECT_EQ(to.pattern_of(from.rows_of(0)), 0);
  }
}

// One decode replica gets sequences of several prefill replicas, each of which counts patterns from 1 on.
TEST(PoolsPolicy, DecodeReplicasTakeRowsOfAllPrefillReplicas) {
  for (const char* text : {"{recipe: d2o_values, budget_frac: 0.1}", "{recipe: pyramidkv, budget_frac: 0.3}"}) {
    SimSetup setup = pools_setup(3, 1, "round_robin");
    for (PoolSetup& pool : setup.pools)
      pool.make_footprint = [recipe = recipe_of(text)] { return std::make_unique<RecipeFootprint>(recipe, kPoolsModel, 16); };
    std::vector<TraceRequest> requests;
    for (int i = 0; i < 24; ++i) requests.push_back(request_at(i, 12 + 7 * i % 60, 20));
    EXPECT_EQ(records_of(setup, requests).requests.size(), requests.size()) << text;
  }
}

}  // namespace
}  // namespace kvlab::testing
