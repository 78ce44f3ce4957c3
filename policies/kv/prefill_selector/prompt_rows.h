#pragma once

#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "policies/kv/prefill_selector/prefill_selector.h"

namespace kvlab {

// k, v [tokens, kv_heads, head_dim], without positions. Scratch of the current Frame.
KvRows dense_rows(Ops& ops, const ModelShape& m, std::int32_t tokens, const float* k, const float* v);

// A prompt's first `tokens` keys and values, with zero `words` statistics per token; position i is token i. Scratch of the current Frame.
KvRows prompt_rows(const PromptChunk& chunk, std::int32_t tokens, std::int32_t words = 0);

// At positions [begin, end).
Queries prompt_queries(const PromptChunk& chunk, std::int32_t begin, std::int32_t end);

// All inputs but the choice.
ChosenPrefill chosen_prefill(const PromptChunk& chunk);

}  // namespace kvlab
