#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "traces/line_reader.h"
#include "traces/trace.h"

namespace kvlab {

// Makes `ids`, one per `block` tokens of the prompt, the content of `request`; the last may cover a partial block. The ids become a
// chain, each combined with those before it: published ids name whole prefixes already, and in dialects whose ids name single blocks
// the chain does. Stops where their number does not fit the prompt. The request's hashes point into `ids`.
void set_chained_ids(const InputPlace& lines, std::vector<std::uint64_t>& ids, std::int32_t block, TraceRequest& request);

// The chain alone; ids of different scopes never meet. 0: ids of the whole trace.
void chain_ids(std::span<std::uint64_t> ids, std::int32_t block, std::uint64_t scope = 0);

// Stops where `count` ids of `block` tokens do not fit the prompt: its full blocks, and perhaps the partial one at its end.
void check_id_count(const InputPlace& lines, std::string_view column, std::size_t count, std::int32_t block, std::int32_t prompt_tokens);

// Stops where a row of our own formats has more hashes than its tokens fill, or only one of hashes and hash_tokens.
void check_hashes(const InputPlace& lines, const TraceRequest& request);

}  // namespace kvlab
