#include "tests/cuda/recipe_cut.h"

namespace kvlab {
namespace {

// Positions of the tokens in each row of a sequence, by layer and head.
using Held = std::vector<std::vector<std::int32_t>>;

struct RecipeOutcome {
  std::vector<Held> held;                // [steps]
  std::vector<std::vector<float>> outs;  // attention's outputs
  TierBytes resident;
  Held offloaded;  // positions
};

class EngineRecipesCuda : public CudaTest, public testing::WithParamInterface<std::string> {
 protected:
  // A prompt in two chunks and a few decode steps.
  RecipeOutcome run(const Cut& cut, bool on_gpu) {
    const TensorMemory memory = on_gpu ? TensorMemory(cuda()) : TensorMemory();
    PolicyCache cache = cache_for(cut, memory, on_gpu ? ElementType::kBf16 : ElementType::kF32);
    EngineSequence s = cut.sequence();
    cache.start(s);
    RecipeOutcome outcome;
    std::uint64_t seed = 7;
    for (const std::int32_t tokens : {48, cut.prompt - 48, 1, 1, 1}) {
      const StepPiece piece{&s, tokens};
      cache.begin_step({&piece, 1});
      for (std::int32_t l = 0; l < cut.layers; ++l) outcome.outs.push_back(layer(cache, l, tokens, seed += 10, on_gpu));
      cache.end_step({});
      outcome.held.push_back(cache.positions(s));
    }
    outcome.resident = cache.resident(s);
    for (const EngineSequence::Offloaded& row : s.offloaded) outcome.offloaded.push_back(row.position);
    cache.release(s);
    EXPECT_EQ(cache.pages().used_pages(), 0) << cut.recipe.name;
    return outcome;
  }

  std::vector<float> layer(PolicyCache& cache, std::int32_t l, std::int32_t tokens, std::uint64_t seed, bool on_gpu) {
    return on_gpu ? run_layer<bf16>(cache, l, tokens, seed, cuda()) : run_layer(cache, l, tokens, seed);
  }
};

TEST_P(EngineRecipesCuda, KeepsTheSameTokensAsOnTheCpu) {
  const Cut recipe = cut_of(GetParam());
  const Needs needs = cache_for(recipe, TensorMemory(), ElementType::kF32).policy().needs();
  if (!needs.cpu_only.empty() || !needs.pass.empty()) {
    EXPECT_THAT(error_of([&] { run(recipe, true); }), testing::HasSubstr("only with backend cpu"));
    return;
  }
  const RecipeOutcome cpu = run(recipe, false), gpu = run(recipe, true);
  std::int64_t kept = 0, apart = 0;  // a near tie may go either way where sums are taken in another order
  for (std::size_t i = 0; i < cpu.held.size(); ++i)
    for (std::size_t r = 0; r < cpu.held[i].size(); ++r) {
      ASSERT_EQ(gpu.held[i][r].size(), cpu.held[i][r].size()) << "step " << i << " row " << r;
      for (std::size_t t = 0; t < cpu.held[i][r].size(); ++t) ++kept, apart += cpu.held[i][r][t] != gpu.held[i][r][t] ? 1 : 0;
    }
  EXPECT_EQ(apart, 0) << "of " << kept << " kept tokens";
  EXPECT_EQ(gpu.resident, cpu.resident);
  EXPECT_EQ(gpu.offloaded, cpu.offloaded);
  for (std::size_t i = 0; i < cpu.outs.size(); ++i) {
    // Outputs are rounded to bf16, and probabilities in prefill before they meet V.
    EXPECT_LE(relative_error(gpu.outs[i], cpu.outs[i]), 0.01) << "pass " << i;
  }
  if (recipe.recipe.selector == "all" || GetParam() == "moba") return;  // moba reads two chunks of 512 tokens at least
  const RecipeOutcome full = run({load_recipe("full"), recipe.prompt, recipe.layers}, false);
  EXPECT_GT(relative_error(cpu.outs.back(), full.outs.back()), 0.01) << "it selects everything";
}

INSTANTIATE_TEST_SUITE_P(Recipes, EngineRecipesCuda, testing::ValuesIn(recipes_in({"engine"})),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace kvlab
