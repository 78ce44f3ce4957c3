#pragma once

#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "policies/kv/prefill_selector.h"

namespace kvlab {

// The first `tokens` tokens of a prompt's keys and values as rows of KV heads, for operations that take a cache; position i is token i, and
// each token has `words` statistics, which are 0. Its memory is the Ops' scratch of the current Frame.
KvRows prompt_rows(const PromptChunk& chunk, std::int32_t tokens, std::int32_t words = 0);

// The queries at the positions [begin, end) of the chunk.
Queries prompt_queries(const PromptChunk& chunk, std::int32_t begin, std::int32_t end);

// The attention of the chunk's queries among chosen tokens, all but the choice itself filled in.
ChosenPrefill chosen_prefill(const PromptChunk& chunk);

}  // namespace kvlab
