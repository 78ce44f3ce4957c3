#pragma once

#include <cstdint>

#include "policies/kv/footprint.h"
#include "policies/kv/policy/policy.h"

namespace kvlab {

// A prompt's scan and choice (PromptRewriter): per chunk a forward pass through the scan's layers and its operations, then choose(). The
// last layer counts as whole, a bound. Nothing if the prompt stays whole.
void add_scan(PromptRewriter& rewriter, const ModelShape& model, const SeqStep& prompt, PolicyWork& work);

}  // namespace kvlab
