// Recipes' operations, timed in the engine, are those that a simulation pays for.
#include "calibrate/recipe_ops.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "sim/kv_cost/recipe_footprint.h"
#include "tests/engine/small_model.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

constexpr std::int32_t kTimedPrompt = 300, kTimedSequences = 2, kTimedSteps = 3;

ModelConfig timed_config() { return test::small_config(3); }

std::map<std::string, std::vector<Measured>> timed(const Recipe& recipe, bool stops = false) {
  const std::unique_ptr<EngineModel> model = make_random_model("cpu", timed_config());
  std::map<std::string, std::vector<Measured>> all;
  for (const RecipeCalls& c : time_recipe(*model, recipe, {{kTimedPrompt}, {kTimedSequences}, kTimedSteps, 1}, std::atomic<bool>(stops)))
    all[c.op].push_back(c.measured);
  return all;
}

// A step in which both sequences decode over their prompt and the tokens after it.
PolicyWork charged_step(RecipeFootprint& footprint) {
  constexpr std::int32_t kHeld = kTimedPrompt + kTimedSteps / 2;
  std::vector<SeqState> batch(kTimedSequences, SeqState{kHeld, kTimedPrompt, kHeld}.taking(1));
  PolicyWork work;
  footprint.charge(batch, work);
  return work;
}

class TimedRecipe : public testing::TestWithParam<const char*> {};

TEST_P(TimedRecipe, HasWhatASimulationPaysFor) {
  const Recipe recipe = load_recipe(GetParam());
  const auto found = timed(recipe);
  RecipeFootprint footprint(recipe, {3, 4, 2, 32, 64, 4}, 16, KvReads::kUnpacked, at_rest_of(recipe.name));
  for (const PolicyOp& op : charged_step(footprint).ops) {
    if (op.bytes == 0) continue;
    const std::string name(op.name);
    ASSERT_TRUE(found.contains(name)) << name;
    double nearest = 1e9;
    for (const Measured& m : found.at(name)) {
      EXPECT_GT(m.seconds, 0);
      nearest = std::min(nearest, std::abs(std::log(static_cast<double>(m.bytes * op.launches) / static_cast<double>(op.bytes))));
    }
    EXPECT_LE(nearest, std::log(2)) << name << ": counts that depend on data are bounds or means in the simulation";
  }
}

INSTANTIATE_TEST_SUITE_P(, TimedRecipe, testing::Values("kivi2", "gear", "infinigen", "kcache", "quest", "a2ats"),
                         [](const auto& info) { return std::string(info.param); });

TEST(RecipeOps, WhatRestsIsTimedOverAllThatIsHeld) {
  const auto found = timed(load_recipe("kivi2"));
  constexpr std::int64_t kRows = 3 * 2, kHeld = kTimedPrompt + kTimedSteps / 2;
  ASSERT_EQ(found.at("at_rest/kivi2").size(), 1U);
  const Measured& m = found.at("at_rest/kivi2").front();
  EXPECT_EQ(m.tokens, kTimedSequences * kRows * kHeld);
  EXPECT_EQ(m.bytes, m.tokens * 2 * 32 * 4);
  EXPECT_GT(m.seconds, 1e-6);
  EXPECT_FALSE(timed(load_recipe("snapkv", 64)).contains("at_rest/snapkv")) << "never rests";
}

// Half of 64 tokens is less than vatp always keeps, half of 300 is not.
TEST(RecipeOps, PromptsThatAreTooShortAreLeftOut) {
  const std::unique_ptr<EngineModel> model = make_random_model("cpu", timed_config());
  const auto prompts_of = [&](std::vector<std::int32_t> lengths) {
    std::size_t prompts = 0;
    for (const RecipeCalls& c : time_recipe(*model, load_recipe("vatp"), {std::move(lengths), {1}, 1, 1}, std::atomic<bool>(false)))
      prompts += c.op == "compact" ? 1 : 0;
    return prompts;
  };
  EXPECT_EQ(prompts_of({300}), 1U);
  EXPECT_EQ(prompts_of({64, 300}), 1U);
  EXPECT_THROW(prompts_of({32, 64}), InputError);
}

TEST(RecipeOps, WhatDoesNotRunThereIsRefused) {
  const auto error_on = [](const char* backend, const char* name) {
    return error_of([&] { require_timed(backend, load_recipe(name), timed_config()); });
  };
  EXPECT_EQ(error_on("cpu", "kvpress_knorm"), "no error");
  EXPECT_THAT(error_on("cuda", "kvpress_knorm"), testing::HasSubstr("breaks ties as a library does on a CPU"));
  EXPECT_THAT(error_on("cuda", "kvzip"), testing::HasSubstr("needs the extra pass"));
  EXPECT_THAT(error_on("cpu", "finch"), testing::HasSubstr("does not run in simulations"));
}

TEST(RecipeOps, AStopEndsIt) { EXPECT_TRUE(timed(load_recipe("kivi2"), true).empty()); }

// `calibrate --kv-policy all`: a few recipes whose steps call every operation.

std::set<std::string> covered(const std::vector<std::string>& recipes) {
  std::set<std::string> all;
  for (const std::string& name : recipes) all.merge(operations_of(timed_recipe(load_recipe(name)), test::small_config(8)));
  return all;
}

// The operations that the engine calls in the recipes of tests/kernels/golden_ops.txt, each with one of these.
std::map<std::string, std::string> called_in_engine(bool has_kernel) {
  std::ifstream file(KVLAB_SOURCE_DIR "/tests/kernels/golden_ops.txt");
  std::map<std::string, std::string> all;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string recipe, op, calls, cpu, emulated;
    words >> recipe >> op >> calls >> cpu >> emulated;
    if (!has_kernel || emulated != "-") all.emplace(op, recipe);
  }
  return all;
}

// attend and at_rest are timed otherwise; the simulator prices prompts with sparse_prefill and packs no words.
const std::set<std::string> kApart{"attend", "at_rest", "fetch", "read_disk"};

TEST(CoveringRecipes, CallWhatTheEngineCalls) {
  for (const char* backend : {"cpu", "cuda"}) {
    const std::vector<std::string> recipes = covering_recipes(backend, test::small_config(8));
    const std::set<std::string> names = covered(recipes);
    EXPECT_LT(recipes.size(), 90U);
    for (const auto& [op, recipe] : called_in_engine(backend == std::string("cuda")))
      EXPECT_TRUE(names.contains(op) || kApart.contains(op)) << op << " of " << recipe << " on " << backend;
  }
}

TEST(CoveringRecipes, EachAddsAnOperation) {
  std::set<std::string> known;
  for (const std::string& name : covering_recipes("cpu", test::small_config(8))) {
    const std::size_t before = known.size();
    known.merge(covered({name}));
    EXPECT_GT(known.size(), before) << name;
  }
}

}  // namespace
}  // namespace kvlab
