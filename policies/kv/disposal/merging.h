#pragma once

#include "kernels/parted_rows.h"
#include "policies/kv/part.h"

namespace kvlab {

// A disposal that changes the tokens that stay.
class Merging : public Disposal {};

// The step's tokens, kept and dropped; lists are scratch of step.ops.
PartedRows part_rows(LayerStep& step, const Kept& kept);

// Moves the kept tokens to the front of their rows.
void compact(LayerStep& step, const Kept& kept);

}  // namespace kvlab
