#pragma once

#include <vector>

#include "policies/kv/footprint.h"

namespace kvlab {

// Sums operations by name, in order of first appearance; launches count calls. Overlapped transfers stay separate if their calls differ in
// bytes, because each layer waits for its own.
void add_op(std::vector<PolicyOp>& ops, const PolicyOp& more);

}  // namespace kvlab
