#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/measurements.h"
#include "engine/backend/engine_model.h"
#include "engine/model/config.h"
#include "policies/kv/recipe/recipe.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// With a budget of 256 tokens if it takes one and has none.
Recipe timed_recipe(const Recipe& recipe);

// In a prompt and in decode, on shapes. Throws InputError as RecipeFootprint.
std::set<std::string> operations_of(const Recipe& recipe, const ModelConfig& model);

// Names of sets that together have every element; each adds the most that none before it has.
std::vector<std::string> greedy_cover(const std::map<std::string, std::set<std::string>>& sets);
// Greedy cover of all operations that recipes of the backend ("cpu", "cuda") call.
std::vector<std::string> covering_recipes(std::string_view backend, const ModelConfig& model);

// Calls of similar size.
struct RecipeCalls {
  std::string op;     // folder in kernels/
  Measured measured;  // median time and mean counts of a call
};

// For each length and number of sequences: prompts one at a time, then decode steps of all.
struct RecipeSteps {
  std::vector<std::int32_t> prompt_tokens, sequences;
  std::int32_t decode_steps = 4;
  std::uint64_t seed = 1;  // of token ids
};

// Throws InputError if the recipe's steps do not run on the backend ("cpu", "cuda") or no simulation supports it.
void require_timed(std::string_view backend, const Recipe& recipe, const ModelConfig& model);

// Skips prompts too short for the recipe; throws InputError if all are. Returns the calls so far if `stop` becomes true.
std::vector<RecipeCalls> time_recipe(const EngineModel& model, const Recipe& recipe, const RecipeSteps& steps,
                                     const std::atomic<bool>& stop);

// Throws InputError if the engine does not support the model.
ModelConfig engine_shape(const ModelSpec& spec);

}  // namespace kvlab
