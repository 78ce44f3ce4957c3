#pragma once

#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// Reads `weights: FILE` and `weights_from` (the experiment's, else the recipe file's). Throws with file:line:column if the file is missing
// or unused, or a tensor missing or of another type.
void read_weights(Params& experiment, Params& file, Recipe& recipe);

}  // namespace kvlab
