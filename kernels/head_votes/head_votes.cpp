#include "kernels/head_votes/head_votes.h"

namespace kvlab {

OpCall call(const HeadVotes& a) {
  OpCall c{"head_votes", a.kv.num_rows, 0, 0, 0, 0};
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

}  // namespace kvlab
