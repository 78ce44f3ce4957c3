#pragma once

#include <cstdint>
#include <vector>

#include "traces/line_reader.h"
#include "traces/trace.h"

namespace kvlab {

// Makes `ids`, one per `block` tokens of the prompt, the content of `request`; the last may cover a partial block. The ids become a
// chain, each combined with those before it: published ids name whole prefixes already, and in dialects whose ids name single blocks
// the chain does. Stops where their number does not fit the prompt. The request's hashes point into `ids`.
void set_chained_ids(const LineReader& lines, std::vector<std::uint64_t>& ids, std::int32_t block, TraceRequest& request);

// Stops where a row of our own formats has more hashes than its tokens fill, or only one of hashes and hash_tokens.
void check_hashes(const LineReader& lines, const TraceRequest& request);

}  // namespace kvlab
