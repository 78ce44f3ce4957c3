#include "policies/kv/selector/attention_ring/attention_ring.h"

#include <algorithm>

namespace kvlab {

OpCall call(const PushAttention& a) {
  OpCall c{.op = "push_attention", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.tokens(r), w = std::min(a.ring, a.queries[a.kv.sequence(r)].count);
    if (n == 0 || w == 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * a.kv.head_dim * a.kv.kv_bytes + n * 4 * (w + 1) + w * a.kv.group * a.kv.head_dim * 2;
    c.flops += n * w * a.kv.group * (2LL * a.kv.head_dim + 3);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(PushAttention)

}  // namespace kvlab
