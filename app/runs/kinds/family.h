#pragma once

#include <string>

#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// Group in tables and figures: by how tokens are chosen, else by what is done to them.
std::string family_of(const Recipe& recipe);

}  // namespace kvlab
