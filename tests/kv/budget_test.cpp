#include <gtest/gtest.h>

#include "policies/kv/policy/policy.h"
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/recipes_in.h"

namespace kvlab {
namespace {

// Attends to everything, and is a selector none the less: it has no budget.
class Unbudgeted final : public Selector {
 public:
  explicit Unbudgeted(Params&) {}
  Selection select(LayerStep&) override { return {}; }
};
KVLAB_REGISTER(Selector, Unbudgeted, "test_unbudgeted", "for this test", "none");

std::string error(const std::string& options) {
  return error_of([&] { recipe_of("{recipe: " + options + "}"); });
}

TEST(Budget, IsRefusedWhereNoPartHasAUseForIt) {
  const auto no_use = [](const std::string& recipe, const std::string& why) {
    return HasSubstr("recipe '" + recipe + "' has no use for a budget: " + why);
  };
  for (const std::string recipe : {"full", "kivi2", "think", "mustafar50"})
    for (const char* budget : {", budget_tokens: 64", ", budget_frac: 0.5", ", compression_ratio: 0.5"})
      EXPECT_THAT(error(recipe + budget), no_use(recipe, "it keeps and reads every token"));
  EXPECT_THAT(error("full, selector: test_unbudgeted, budget_tokens: 64"),
              no_use("full", "its selector 'test_unbudgeted' keeps to parameters of its own"));
  EXPECT_THAT(error("corm, budget_tokens: 64"), no_use("corm", "its trigger 'every_n' leaves it to allocator 'score_threshold'"));
  EXPECT_EQ(error("full, budget_tokens: 64").find('\n'), std::string::npos);
}

// A recipe that is named on the command line has no line to name.
TEST(Budget, IsRefusedWithoutAPlaceWhereThereIsNoFile) {
  EXPECT_EQ(error_of([] { load_recipe("full", 5); }), "recipe 'full' has no use for a budget: it keeps and reads every token");
}

TEST(Budget, IsTakenWhereAPartUsesIt) {
  for (const std::string recipe : {"snapkv", "quest", "lserve_pages", "kcache", "snapkv_kivi2"})
    EXPECT_EQ(error(recipe + ", budget_tokens: 64"), "no error") << recipe;
}

TEST(Budget, AShareIsAtLeastOneToken) {
  for (const bool truncates : {true, false}) {
    const Budget share{0, 0.2, truncates};
    EXPECT_EQ(share.of(1), 1);
    EXPECT_EQ(share.of(2), 1);
    EXPECT_EQ(share.of(10), 2);
  }
  EXPECT_EQ(Budget{}.of(10), 0);
}

TEST(Budget, IsRefusedByThePolicyItself) {
  constexpr ModelShape kShape{4, 8, 2, 64, 128};
  Recipe recipe = load_recipe("full");
  KvPolicy(recipe, kShape);
  recipe.budget.tokens = 64;
  recipe.has_budget = true;
  EXPECT_THROW(KvPolicy(recipe, kShape), InputError);
}

}  // namespace
}  // namespace kvlab
