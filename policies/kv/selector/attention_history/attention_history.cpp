#include "policies/kv/selector/attention_history/attention_history.h"

#include <algorithm>

#include "base/ceil_div.h"

namespace kvlab {

OpCall call(const PushBlockAttention& a) {
  OpCall c{.op = "push_block_attention"};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t queries = std::min(a.queries[a.kv.sequence(r)].count, a.rows), blocks = ceil_div(a.kv.len[r], a.block_tokens);
    if (queries == 0) continue;
    const std::int64_t tokens = a.lists_tokens ? a.index_first[r + 1] - a.index_first[r] : a.kv.len[r];
    c.rows += 1;
    c.tokens += tokens;
    c.outputs += queries * blocks;
    c.bytes += tokens * a.kv.head_dim * a.kv.kv_bytes + 4 * queries * blocks;
    c.flops += causal_pairs(queries, tokens) * a.kv.group * (2 * a.kv.head_dim + 3);
  }
  return c;
}

OpCall call(const PredictBlocks& a) {
  const std::int64_t n = a.first[a.num_rows], products = a.has_network ? a.rows * (9 * 16 + 9 * 16 * 32) + 32 : a.rows;
  return {.op = "predict_blocks", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = 4 * n * (a.rows + 1), .flops = 2 * n * products};
}

}  // namespace kvlab
