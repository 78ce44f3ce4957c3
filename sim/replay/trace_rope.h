#pragma once

#include "kernels/model/rope/rotary.h"
#include "traces/attention_trace.h"

namespace kvlab {

// The trace's rotary positions, from its metadata rope_base and rope_scaling. Errors (InputError): a kind of scaling that is not supported,
// a number missing or out of range. transformers takes the length before scaling from config.json where rope_scaling does not have it; a
// trace has none other.
RopeForm rope_of(const AttentionTrace& trace);

// Error (InputError) where the trace has queries before and after RoPE and these rotary positions do not turn one into the other: the
// metadata are those of another model, or leave out its scaling.
void check_rotation(const AttentionTrace& trace, const RopeForm& rope);

}  // namespace kvlab
