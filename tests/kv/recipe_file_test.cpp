#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "policies/kv/recipe/recipe.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

TEST(RecipeFile, ARemovedKeyIsExplained) {
  const std::string path = ::testing::TempDir() + "/kvlab_next_turn.yaml";
  std::ofstream(path) << "summary: s\npaper: p\nconfidence: our definition\nnext_turn: keep\n";
  Params p = Params::from_text("{recipe: " + path + "}", "kv_policy");
  const std::string error = error_of([&] { read_recipe(p); });
  EXPECT_NE(error.find("kvlab_next_turn.yaml:4:12: 'next_turn' had no effect and was removed: delete the line"), std::string::npos)
      << error;
  std::filesystem::remove(path);
}

template <class Interface>
void add_conflicts(std::vector<Conflict>& all) {
  for (const auto& [name, entry] : Registry<Interface>::table_view()) {
    Params p = Params::empty(name);
    try {
      for (const Conflict& conflict : entry.make(p)->conflicts()) all.push_back(conflict);
    } catch (const InputError&) {  // a parameter has no default
    }
  }
}

// Other words in braces would be printed as they are.
TEST(Recipe, ConflictsNameOnlyPartsOfARecipe) {
  std::vector<Conflict> all;
  add_conflicts<Scorer>(all), add_conflicts<Allocator>(all), add_conflicts<Trigger>(all), add_conflicts<Disposal>(all);
  add_conflicts<Format>(all), add_conflicts<Selector>(all), add_conflicts<PrefillSelector>(all);
  add_conflicts<PromptPruner>(all), add_conflicts<PromptRewriter>(all);
  ASSERT_GT(all.size(), 100U);
  std::set<std::string> known{"splitter"};
  for (const auto& [kind, name] : Recipe().part_names()) known.insert(kind);
  const std::regex placeholder("\\{([a-z_]+)\\}");
  for (const Conflict& conflict : all)
    for (std::sregex_iterator at(conflict.why.begin(), conflict.why.end(), placeholder), end; at != end; ++at)
      EXPECT_TRUE(known.contains((*at)[1])) << conflict.why;
}

// All of `with`, and none of `without`.
TEST(Recipe, AConflictNeedsAllOfItsTraits) {
  const auto error = [](const std::string& parts) {
    Params p = Params::from_text("{recipe: full, " + parts + "}", "kv_policy");
    return error_of([&] { read_recipe(p); });
  };
  EXPECT_NE(error("trigger: every_step").find("trigger 'every_step' acts, so there must be a scorer to rank tokens by"), std::string::npos);
  EXPECT_NE(error("trigger: every_step, scorer: recency").find("so there must be a budget"), std::string::npos);
  EXPECT_NE(error("scorer: recency").find("scorer 'recency' is never asked, because the trigger is 'never'"), std::string::npos);
  EXPECT_EQ(error("trigger: prefill_end, scorer: recency, budget_tokens: 64, disposal: merge_nearest, format: kivi"), "no error");
  EXPECT_NE(error("trigger: every_step, scorer: recency, budget_tokens: 64, disposal: merge_nearest, format: kivi")
                .find("disposal 'merge_nearest' changes tokens after format 'kivi' encoded them; trigger 'prefill_end' merges before"),
            std::string::npos);
}

}  // namespace
}  // namespace kvlab
