#include "policies/kv/recipe/recipe.h"
#include "tests/kv/host_fixture.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"

namespace kvlab::test {
namespace {

class CostHost : public testing::TestWithParam<std::string> {};

TEST_P(CostHost, ChargesWhatReplayExecutes) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  for (const std::int32_t budget : {130, 1024}) {  // the smaller one is above what any recipe always keeps
    Recipe recipe = load_recipe(GetParam());
    if (recipe.has_budget || recipe.selector != "all") recipe = with_budget(GetParam(), budget);
    AttentionTrace trace = sample({});
    const Needs needs = KvPolicy(recipe, shape_of(trace, 2)).needs();
    if (!needs.pass.empty()) add_pass(trace, needs.pass);
    expect_cost_is_replay(trace, full_attention(trace), recipe);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, CostHost, testing::ValuesIn(recipes_in({"replay", "cost"})), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab::test
