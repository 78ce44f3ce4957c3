#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "policies/kv/recipe.h"
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

}  // namespace
}  // namespace kvlab
