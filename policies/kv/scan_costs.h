#pragma once

#include <cstdint>

#include "policies/kv/footprint.h"
#include "policies/kv/policy.h"

namespace kvlab {

// Adds to `work` the cost of a prompt's scan and of the choice that follows it (PromptRewriter), from lengths alone: a forward pass through
// the scan's layers for each chunk over what their policy left, the operations of that policy, and those of choose(). The last layer, of
// which the scan computes queries, keys and values alone, counts as a whole one: a bound. Nothing where the prompt stays whole.
void add_scan(PromptRewriter& rewriter, const ModelShape& model, const SeqStep& prompt, PolicyWork& work);

}  // namespace kvlab
