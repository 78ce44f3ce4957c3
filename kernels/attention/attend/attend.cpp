#include "kernels/attention/attend/attend.h"

namespace kvlab {

OpCall call(const Attend& a) {
  if (a.num_segments == 0) return {.op = "attend"};
  const KvRows& kv = a.segments[0].kv;
  OpCall c{.op = "attend", .rows = kv.num_rows};
  for (std::int32_t s = 0; s < a.num_segments; ++s) {
    const Segment& segment = a.segments[s];
    std::int64_t tokens = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = segment.tokens(r);
      tokens += n;
      if (segment.weighs_tokens) c.bytes += 4 * n * kv.group * (segment.weighed_queries > 0 ? a.queries[kv.sequence(r)].count : 1);
      c.flops += 4 * n * a.queries[kv.sequence(r)].count * kv.group * kv.head_dim;
    }
    c.tokens += tokens;
    c.bytes += segment.read_bytes >= 0 ? segment.read_bytes : 2 * tokens * kv.head_dim * kv.kv_bytes;
    if (segment.index != nullptr || segment.index_first != nullptr) c.bytes += 4 * tokens;
  }
  for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
    c.outputs += a.queries[s].count;
    c.bytes += 2LL * a.queries[s].count * kv.kv_heads * kv.group * kv.head_dim * 2;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(Attend)

}  // namespace kvlab
