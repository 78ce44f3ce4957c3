// Compares the memory that serving counts for every recipe with the bound that the recipe declares.
#include "tests/held_bounds.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "sim/kv_cost/recipe_footprint.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kBoundModel{4, 4, 2, 32, 64};
constexpr std::int32_t kBoundChunk = 1024, kBoundDecoded = 24, kBoundBlock = 16;

std::int64_t tokens_in_rows(const RecipeFootprint& footprint, const SeqState& seq) {
  const std::vector<std::int32_t> held = footprint.shape_of(seq.taking(1)).held;
  const std::int64_t rows = kBoundModel.num_layers * kBoundModel.kv_heads;
  return held.size() == 1 ? rows * held.front() : std::accumulate(held.begin(), held.end(), std::int64_t{0});
}

// Prompt and decode steps of one sequence.
void expect_held_bounds(RecipeFootprint& footprint, const KvPolicy& policy, std::int32_t prompt) {
  SeqState seq{0, prompt, 0, 0, false, false};
  const std::int32_t chunk = policy.prunes() ? prompt : kBoundChunk;
  while (seq.seen_tokens < prompt + kBoundDecoded) {
    const std::int32_t tokens = seq.seen_tokens < prompt ? std::min(chunk, prompt - seq.seen_tokens) : 1;
    const FootprintStep done = footprint.step(seq.taking(tokens));
    const std::int64_t most = policy.most_tokens({0, seq.seen_tokens, tokens, prompt, policy.needs().assumed_question(prompt)});
    seq = done.after(seq.taking(tokens));
    EXPECT_LE(tokens_in_rows(footprint, seq), most) << "after " << seq.seen_tokens << " tokens";
    if (testing::Test::HasFailure()) return;
  }
}

class HeldBounds : public testing::TestWithParam<std::string> {};

TEST_P(HeldBounds, ServingHoldsNoMoreThanTheRecipeSays) {
  if (left_out_of_bounds(GetParam())) GTEST_SKIP() << kLeftOut;
  for (const auto& [budget, recipe] : bound_cases(GetParam())) {
    std::unique_ptr<RecipeFootprint> footprint;
    try {
      footprint = std::make_unique<RecipeFootprint>(recipe, kBoundModel, kBoundBlock);
    } catch (const InputError&) {
      continue;  // the budget is below what always stays, or only a recording has what it observes
    }
    const KvPolicy policy(recipe, kBoundModel);
    for (const std::int32_t prompt : kBoundPrompts) {
      SCOPED_TRACE(GetParam() + " " + budget + ", prompt of " + std::to_string(prompt));
      expect_held_bounds(*footprint, policy, prompt);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, HeldBounds, testing::ValuesIn(recipes_in({"cost"})), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab::test
