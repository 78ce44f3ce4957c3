#pragma once

#include <vector>

#include "policies/kv/footprint.h"

namespace kvlab {

// Operations of a step summed by name, in order of first appearance; launches count calls. Transfers that run beside computation stay apart
// where their calls have other bytes, because each layer waits for its own.
void add_op(std::vector<PolicyOp>& ops, const PolicyOp& more);

}  // namespace kvlab
