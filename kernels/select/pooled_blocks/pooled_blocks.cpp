#include "kernels/select/pooled_blocks/pooled_blocks.h"

#include <algorithm>

namespace kvlab {

OpCall call(const PooledBlocks& a) {
  const PromptBlocks& p = a.prompt;
  OpCall c{.op = "pooled_blocks"};
  for (std::int64_t h = 0; h < p.q_heads; ++h) {
    if (a.top[h] == 0) continue;
    ++c.rows;
    for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) c.outputs += std::min<std::int64_t>(a.top[h], p.first_block() + b + 1);
  }
  const std::int64_t keys = ceil_div(c.rows, p.group()) * p.end();
  c.tokens = c.rows * p.end();
  c.flops = (c.rows * p.new_tokens + keys) * p.head_dim + c.rows * p.causal_blocks() * (2 * p.head_dim + 1);
  c.bytes =
      (c.rows * p.new_tokens * p.activation_bytes + keys * p.kv_bytes) * p.head_dim + 4 * c.rows * p.num_query_blocks() * p.mark_words();
  return c;
}

}  // namespace kvlab
