#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/measurements.h"
#include "engine/backend/engine_model.h"

namespace kvlab {

// Calls of one operation of a recipe, of about the same size.
struct RecipeCalls {
  std::string op;     // the folder in kernels/
  Measured measured;  // of a call: the median time, the means of the counts
};

// The steps in which a recipe's operations are timed: for each length and each number of sequences, prompts of that many tokens, one in a
// step, and then decode steps of all of them.
struct RecipeSteps {
  std::vector<std::int32_t> prompt_tokens, sequences;
  std::int32_t decode_steps = 4;
  std::uint64_t seed = 1;  // of token ids
};

// Refuses (InputError) a recipe whose steps do not run on the backend ("cpu", "cuda") or that no simulation has.
void require_timed(std::string_view backend, const Recipe& recipe, const ModelConfig& model);

// Times every operation of the recipe as the engine calls it, in steps of the model; prompts so short that the recipe refuses them are left
// out. Errors (InputError) as PolicyCache's, if all are refused. If `stop` becomes true, it returns the calls timed so far.
std::vector<RecipeCalls> time_recipe(const EngineModel& model, const Recipe& recipe, const RecipeSteps& steps,
                                     const std::atomic<bool>& stop);

}  // namespace kvlab
