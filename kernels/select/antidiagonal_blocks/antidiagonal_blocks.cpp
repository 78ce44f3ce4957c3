#include "kernels/select/antidiagonal_blocks/antidiagonal_blocks.h"

namespace kvlab {

OpCall call(const AntidiagonalBlocks& a) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t queries = query_blocks(p.new_tokens, p.kv_before, a.stride), before = p.kv_before / a.stride;
  const std::int64_t pairs = p.q_heads * (queries * before + queries * (queries + 1) / 2);
  return {.op = "antidiagonal_blocks",
          .rows = p.q_heads,
          .tokens = p.q_heads * p.end(),
          .outputs = p.num_lists(),
          .bytes = (p.q_heads * p.new_tokens * p.activation_bytes + p.kv_heads * p.end() * p.kv_bytes) * p.head_dim +
                   4 * p.num_lists() * p.mark_words(),
          .flops = pairs * (2 * p.head_dim * a.stride + 3)};
}

}  // namespace kvlab
