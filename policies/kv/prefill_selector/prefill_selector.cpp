#include "policies/kv/prefill_selector/prefill_selector.h"

namespace kvlab {

PromptBlocks PromptChunk::blocks(std::int32_t block) const {
  return {q, k, seq.new_tokens, seq.seen_tokens, model.q_heads, model.kv_heads, model.head_dim, model.kv_bytes, model.kv_bytes, block};
}

std::vector<Conflict> PrefillSelector::conflicts() const {
  return {{{Trait::kCutsChunks},
           {},
           "prefill selector '{prefill_selector}' needs all tokens of the prompt, and trigger '{trigger}' cuts the cache inside it"}};
}

}  // namespace kvlab
