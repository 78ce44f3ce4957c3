#pragma once

#include <cstdint>
#include <vector>

#include "traces/trace.h"

namespace kvlab {

// The token ids of a request that are known before it runs: the prompt, and generated tokens that the trace's hashes cover. A pure function
// of (seed, hashes) where there are hashes, so that equal hashes give equal tokens, and of (seed, request number) elsewhere.
std::vector<std::int32_t> request_content(const TraceRequest& request, std::uint64_t seed, std::int32_t vocabulary);

}  // namespace kvlab
