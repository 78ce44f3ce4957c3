#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "traces/line_reader.h"
#include "traces/trace.h"

namespace kvlab {

// Chains `ids`, one per `block` prompt tokens (the last may be partial), since some dialects name single blocks. Throws if their number
// does not fit. The request's hashes point into `ids`.
void set_chained_ids(const InputPlace& lines, std::vector<std::uint64_t>& ids, std::int32_t block, TraceRequest& request);

// Different scopes never match. 0: whole trace.
void chain_ids(std::span<std::uint64_t> ids, std::int32_t block, std::uint64_t scope = 0);

// Throws unless `count` fits the prompt's blocks, the last perhaps partial.
void check_id_count(const InputPlace& lines, std::string_view column, std::size_t count, std::int32_t block, std::int32_t prompt_tokens);

// Throws for more hashes than tokens, or only one of hashes and hash_tokens.
void check_hashes(const InputPlace& lines, const TraceRequest& request);

}  // namespace kvlab
