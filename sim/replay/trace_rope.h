#pragma once

#include "kernels/model/rope/rotary.h"
#include "traces/attention_trace.h"

namespace kvlab {

// By rope_base and rope_scaling. Throws InputError if unsupported, missing or invalid.
RopeForm rope_of(const AttentionTrace& trace);

// Throws InputError if pre-RoPE queries do not rotate into the trace's queries.
void check_rotation(const AttentionTrace& trace, const RopeForm& rope);

}  // namespace kvlab
