#include "policies/kv/scorer/group_votes/group_votes.h"

namespace kvlab {

OpCall call(const GroupVotes& a) {
  OpCall c{.op = "group_votes", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, group = a.kv.group;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r], w = a.queries[a.kv.sequence(r)].count;
    c.tokens += n;
    c.bytes += n * d * a.kv.kv_bytes + w * group * d * 2 + 8 * n;
    c.flops += 2 * group * causal_pairs(w, n) * (d + 1);
  }
  return c;
}

}  // namespace kvlab
