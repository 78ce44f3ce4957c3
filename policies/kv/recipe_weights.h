#pragma once

#include "policies/kv/recipe.h"

namespace kvlab {

// Reads `weights: FILE` of the experiment's mapping or, if that has none, of the recipe's file, and `weights_from`, which states where
// to get such a file. The parts that the recipe makes afterwards have the tensors. Errors with file:line:column: no such file, with
// weights_from; a file that no part of the recipe reads; a tensor that is missing or of another type.
void read_weights(Params& experiment, Params& file, Recipe& recipe);

}  // namespace kvlab
