#pragma once

#include <vector>

#include "kernels/ops.h"
#include "policies/kv/footprint.h"

namespace kvlab {

// Operations of a step summed by name, in order of first appearance; launches count calls. Transfers that run beside computation stay apart
// where their calls have other bytes, because each layer waits for its own.
void add_op(std::vector<PolicyOp>& ops, const PolicyOp& more);
// A number of equal calls; `beside`: of fetches. Attention is left out, and fetches of nothing.
void add_calls(std::vector<PolicyOp>& ops, const OpCall& call, std::int64_t times, FetchBeside beside = FetchBeside::kNothing);

}  // namespace kvlab
