#include "kernels/select/flex_blocks/flex_blocks.h"

#include <algorithm>

namespace kvlab {

OpCall call(const FlexBlocks& a) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t w = std::min<std::int64_t>(p.block, p.new_tokens), pairs = w * p.end() - w * (w - 1) / 2, n = p.end();
  const std::int64_t products = p.q_heads * (pairs + p.causal_blocks() + p.num_key_blocks());
  return {.op = "flex_blocks",
          .rows = p.q_heads,
          .tokens = p.q_heads * n,
          .outputs = p.num_lists(),
          .bytes = (p.q_heads * p.new_tokens * p.activation_bytes + p.kv_heads * n * p.kv_bytes) * p.head_dim +
                   4 * p.num_lists() * p.mark_words(),
          .flops = products * (2 * p.head_dim + 5) + (p.q_heads * p.new_tokens + p.kv_heads * n) * p.head_dim};
}

}  // namespace kvlab
