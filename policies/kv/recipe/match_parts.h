#pragma once

#include <string>

#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// First of KvPart::conflicts, or "".
std::string why_not_together(const Recipe& recipe);

}  // namespace kvlab
