// Recipes' operations, timed on a GPU, are those that are timed on the CPU.
#include "calibrate/recipe_ops.h"

#include <set>

#include "tests/cuda/engine_fixture.h"

namespace kvlab {
namespace {

class RecipeOpsCuda : public CudaTest {};

TEST_F(RecipeOpsCuda, TheCallsOfTheCpu) {
  const ModelConfig config = tiny_config();
  const std::atomic<bool> stop = false;
  const RecipeSteps steps{{40}, {2}, 2, 1};
  const auto cpu = make_cpu_model(Transformer(config, tiny_weights(config)));
  const auto gpu = make_device_model(config, tiny_weights(config), {}, ElementType::kF32);
  using Call = std::tuple<std::string, std::int64_t, std::int64_t>;
  const auto calls_on = [&](const EngineModel& model, const Recipe& recipe) {
    std::set<Call> calls;
    for (const RecipeCalls& c : time_recipe(model, recipe, steps, stop)) {
      EXPECT_GT(c.measured.seconds, 0) << c.op;
      calls.insert({c.op, c.measured.bytes, c.measured.flops});
    }
    return calls;
  };
  for (const auto& [name, budget] : {std::pair{"int8_per_token", 0}, {"h2o", 20}, {"tova", 20}}) {
    const Recipe recipe = load_recipe(name, budget);
    const std::set<Call> on_cpu = calls_on(*cpu, recipe);
    EXPECT_FALSE(on_cpu.empty()) << name;
    EXPECT_EQ(calls_on(*gpu, recipe), on_cpu) << name;
  }
}

}  // namespace
}  // namespace kvlab
