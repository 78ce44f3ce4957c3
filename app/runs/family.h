#pragma once

#include <string>

#include "policies/kv/recipe.h"

namespace kvlab {

// Groups recipes in tables and figures by what decides about a token, or else by what happens to it.
std::string family_of(const Recipe& recipe);

}  // namespace kvlab
