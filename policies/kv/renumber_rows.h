#pragma once

#include "policies/kv/part.h"

// Recipes with `positions: renumbered` (kernels/storage/renumber).
namespace kvlab {

// Turns the kept keys, which were moved to the front of their rows; step.kv has the lengths from before the cut.
void renumber_kept(const LayerStep& step, const Selection& kept);

// Turns copies of the tokens that `rows` lists to places next to each other, and sets `rows` to these copies: rows without lists, in
// scratch memory of step.ops. The step's own rows stay as they are.
void place_selected(const LayerStep& step, Segment& rows);

}  // namespace kvlab
