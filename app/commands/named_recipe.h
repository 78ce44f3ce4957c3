#pragma once

#include <string>

#include "policies/kv/recipe.h"

namespace kvlab {

// The recipe that an option names, as load_recipe has it. InputError with the nearest name where there is none.
Recipe named_recipe(const std::string& name, std::int32_t budget_tokens = 0);

}  // namespace kvlab
