#pragma once

#include <string>

#include "policies/kv/recipe/recipe.h"

// `positions: renumbered`: kept keys are rotated to consecutive positions before the next token; selected tokens, for the step that reads
// them. KvRows::position stays original.
namespace kvlab {

void read_positions(Params& experiment, Params& file, Recipe& recipe);

// With an alternative, or "".
std::string why_not_renumbered(const Recipe& recipe);

std::string why_rope_stays(const RopeForm& rope);

// True: keys may be rotated in each step and must not be rounded to 16 bits.
bool turns_in_decode(const Recipe& recipe);

}  // namespace kvlab
