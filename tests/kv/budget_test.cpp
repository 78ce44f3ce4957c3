#include <gtest/gtest.h>

#include "policies/kv/policy/policy.h"
#include "tests/error_of.h"
#include "tests/recipes_in.h"

namespace kvlab {
namespace {

constexpr ModelShape kModel{4, 8, 2, 64, 128};

// Attends to everything, and is a selector none the less: it has no budget.
class Unbudgeted final : public Selector {
 public:
  explicit Unbudgeted(Params&) {}
  Selection select(LayerStep&) override { return {}; }
};
KVLAB_REGISTER(Selector, Unbudgeted, "test_unbudgeted", "for this test", "none");

std::string error(const std::string& yaml) {
  return error_of([&] { recipe_of(yaml); });
}

TEST(Budget, IsRefusedWhereNoPartHasAUseForIt) {
  const std::string all = "has no use for a budget: it keeps and reads every token";
  for (const char* recipe : {"full", "kivi2", "think", "mustafar50"})
    for (const char* budget : {"budget_tokens: 64", "budget_frac: 0.5", "compression_ratio: 0.5"})
      EXPECT_NE(error("{recipe: " + std::string(recipe) + ", " + budget + "}").find("recipe '" + std::string(recipe) + "' " + all),
                std::string::npos)
          << recipe;
  EXPECT_NE(error("{recipe: full, selector: test_unbudgeted, budget_tokens: 64}")
                .find("recipe 'full' has no use for a budget: its selector 'test_unbudgeted' keeps to parameters of its own"),
            std::string::npos);
  EXPECT_NE(error("{recipe: corm, budget_tokens: 64}")
                .find("recipe 'corm' has no use for a budget: its trigger 'every_n' leaves it to allocator 'score_threshold'"),
            std::string::npos);
  EXPECT_EQ(error("{recipe: full, budget_tokens: 64}").find('\n'), std::string::npos);
}

// A recipe that is named on the command line has no line to name.
TEST(Budget, IsRefusedWithoutAPlaceWhereThereIsNoFile) {
  EXPECT_EQ(error_of([] { load_recipe("full", 5); }), "recipe 'full' has no use for a budget: it keeps and reads every token");
}

TEST(Budget, IsTakenWhereAPartUsesIt) {
  for (const char* recipe : {"snapkv", "quest", "lserve_pages", "kcache", "snapkv_kivi2"})
    EXPECT_EQ(error("{recipe: " + std::string(recipe) + ", budget_tokens: 64}"), "no error") << recipe;
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
  Recipe recipe = load_recipe("full");
  KvPolicy(recipe, kModel);
  recipe.budget.tokens = 64;
  recipe.has_budget = true;
  EXPECT_THROW(KvPolicy(recipe, kModel), InputError);
}

}  // namespace
}  // namespace kvlab
