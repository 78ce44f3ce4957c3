// `calibrate --kv-policy all`: a few recipes whose steps call every operation.
#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <sstream>

#include "calibrate/recipe_ops.h"
#include "tests/engine/small_model.h"

namespace kvlab {
namespace {

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
