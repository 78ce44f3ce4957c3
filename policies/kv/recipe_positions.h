#pragma once

#include <string>

#include "policies/kv/recipe.h"

// `positions: renumbered`: when a cut drops tokens of a row, the keys of the others are turned by RoPE so that they are next to each other
// and end right before the following token; a selector's choice is turned in the same way for the step that attends to it. Without it keys
// keep the angles of their original positions. Positions that policies see (KvRows::position) stay the original ones.
namespace kvlab {

// Reads the key from the experiment, else from the recipe's file.
void read_positions(Params& experiment, Params& file, Recipe& recipe);

// The reason why the parts cannot work with renumbered keys, and the alternative; "" if they can, or if nothing is renumbered.
std::string why_not_renumbered(const Recipe& recipe);

// The reason why cached keys of a model cannot be turned; "" if they can.
std::string why_rope_stays(const RopeForm& rope);

// True: keys are turned in decode too, up to once in each step. Each time they must not be rounded to 16 bits.
bool turns_in_decode(const Recipe& recipe);

}  // namespace kvlab
