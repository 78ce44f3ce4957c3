#pragma once

#include "policies/kv/recipe.h"

namespace kvlab {

// Reads `weights: FILE` of the experiment's mapping or, where that has none, of the recipe's file, and `weights_from`, which says where
// such a file can be had. The parts that the recipe makes from then on have the tensors. Errors with file:line:column: no such file, with
// weights_from; a file that no part of the recipe reads; a tensor that is missing or of another type.
void read_weights(Params& experiment, Params& file, Recipe& recipe);

}  // namespace kvlab
