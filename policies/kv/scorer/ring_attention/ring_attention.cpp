#include "policies/kv/scorer/ring_attention/ring_attention.h"

#include <algorithm>

namespace kvlab {

OpCall call(const RingAttention& a) {
  const std::int64_t d = a.kv.head_dim;
  OpCall c{.op = "ring_attention", .rows = a.kv.num_rows, .outputs = a.kv.total(), .bytes = 4 * a.kv.total()};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int32_t w = std::min(a.ring_tokens, a.end[a.kv.sequence(r)]);
    const std::int64_t older = std::max(0, a.kv.len[r] - w), queries = std::int64_t{w} * a.kv.group;
    if (older == 0) continue;
    c.tokens += older;
    c.bytes += older * d * a.kv.kv_bytes + 4 * queries * d;
    c.flops += 2 * queries * older * d;
  }
  return c;
}

}  // namespace kvlab
