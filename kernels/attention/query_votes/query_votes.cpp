#include "kernels/attention/query_votes/query_votes.h"

namespace kvlab {

OpCall call(const QueryVotes& a) {
  OpCall c{.op = a.has_groups() ? "group_votes" : "recent_attention", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, heads = a.kv.kv_heads, group = a.kv.group;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int64_t n = a.tokens(s), w = a.queries[s].count;
    c.tokens += heads * n;
    c.outputs += a.has_groups() ? 0 : n;
    c.bytes += heads * (n * d * a.kv.kv_bytes + w * group * d * 2) + (a.has_groups() ? 8 * heads : 4) * n;
    c.flops += 2 * heads * group * causal_pairs(w, n) * (d + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(QueryVotes)

}  // namespace kvlab
