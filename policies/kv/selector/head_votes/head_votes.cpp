#include "policies/kv/selector/head_votes/head_votes.h"

namespace kvlab {

OpCall call(const HeadVotes& a) {
  OpCall c{.op = "head_votes", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, rows = a.kv.kv_heads, group = a.kv.group;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int64_t n = a.first[s + 1] - a.first[s];
    if (n == 0) continue;
    c.tokens += rows * n;
    c.outputs += n;
    c.bytes += rows * (n * d * a.kv.kv_bytes + group * d * 2) + 4 * n;
    c.flops += 2 * rows * group * n * (d + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(HeadVotes)

}  // namespace kvlab
