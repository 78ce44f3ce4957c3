#pragma once

#include <string>

#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// As load_recipe. Throws InputError if unknown.
Recipe named_recipe(const std::string& name, std::int32_t budget_tokens = 0);

}  // namespace kvlab
