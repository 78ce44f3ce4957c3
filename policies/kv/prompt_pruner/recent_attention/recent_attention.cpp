#include "policies/kv/prompt_pruner/recent_attention/recent_attention.h"

namespace kvlab {

OpCall call(const RecentAttention& a) {
  OpCall c{.op = "recent_attention", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, rows = a.kv.kv_heads, group = a.kv.group;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int64_t n = a.first[s + 1] - a.first[s], w = a.queries[s].count;
    c.tokens += rows * n;
    c.outputs += n;
    c.bytes += rows * (n * d * a.kv.kv_bytes + w * group * d * 2) + 4 * n;
    c.flops += 2 * rows * group * causal_pairs(w, n) * (d + 1);
  }
  return c;
}

}  // namespace kvlab
