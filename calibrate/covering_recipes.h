#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/config.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// With a budget of 256 tokens if it takes one and has none.
Recipe timed_recipe(const Recipe& recipe);

// In a prompt and in decode, on shapes. Throws InputError as RecipeFootprint.
std::set<std::string> operations_of(const Recipe& recipe, const ModelConfig& model);

// Greedy cover of all operations that recipes of the backend ("cpu", "cuda") call.
std::vector<std::string> covering_recipes(std::string_view backend, const ModelConfig& model);

}  // namespace kvlab
