#pragma once

#include <cstdint>
#include <vector>

#include "traces/trace.h"

namespace kvlab {

// Prompt and generated tokens: a function of (seed, hashes), or without hashes of (seed, request number).
std::vector<std::int32_t> request_content(const TraceRequest& request, std::uint64_t seed, std::int32_t vocabulary);

}  // namespace kvlab
