#pragma once

#include "kernels/model/rope/rotary.h"
#include "traces/attention_trace.h"

namespace kvlab {

// From the trace's rope_base and rope_scaling. Throws InputError for unsupported scaling or missing or invalid numbers.
RopeForm rope_of(const AttentionTrace& trace);

// Throws InputError if the trace's pre-RoPE queries do not rotate into its queries.
void check_rotation(const AttentionTrace& trace, const RopeForm& rope);

}  // namespace kvlab
