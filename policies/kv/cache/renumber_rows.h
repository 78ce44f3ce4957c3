#pragma once

#include "kernels/attention/attend/attend.h"
#include "policies/kv/step.h"

// `positions: renumbered` (kernels/storage/renumber).
namespace kvlab {

// Front of the rows; step.kv has the lengths before the cut.
void renumber_kept(const LayerStep& step, const Selection& kept);

// Points `rows` to scratch copies of its listed tokens, rotated to consecutive positions, without lists.
void place_selected(const LayerStep& step, Segment& rows);

}  // namespace kvlab
