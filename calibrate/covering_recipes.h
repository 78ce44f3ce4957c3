#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/config.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// A recipe as calibration runs it: with a budget of 256 tokens where it takes one and has none.
Recipe timed_recipe(const Recipe& recipe);

// Operations that a recipe calls in a prompt and in decode, on shapes. Errors (InputError) as RecipeFootprint's.
std::set<std::string> operations_of(const Recipe& recipe, const ModelConfig& model);

// A few recipes that together call every operation that any recipe of the backend ("cpu", "cuda") calls: the next is always the one with
// most operations that no earlier one has.
std::vector<std::string> covering_recipes(std::string_view backend, const ModelConfig& model);

}  // namespace kvlab
