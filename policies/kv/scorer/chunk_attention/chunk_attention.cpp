#include "policies/kv/scorer/chunk_attention/chunk_attention.h"

#include <algorithm>

namespace kvlab {

// Queries count 2 bytes per element.
OpCall call(const ChunkAttention& a) {
  OpCall c{.op = "chunk_attention", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const Queries& q = a.queries[a.kv.sequence(r)];
    std::int64_t pairs = 0;
    for (std::int32_t at = 0, count = 0; at < q.count; at += count) {
      count = std::min(a.chunk_tokens - (q.first_position + at) % a.chunk_tokens, q.count - at);
      pairs += static_cast<std::int64_t>(count) * count;
    }
    c.tokens += q.count;
    c.outputs += q.count;
    c.bytes += static_cast<std::int64_t>(q.count) * (a.kv.head_dim * (a.kv.kv_bytes + 2 * a.kv.group) + 4);
    c.flops += 2 * pairs * a.kv.group * (a.kv.head_dim + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ChunkAttention)

}  // namespace kvlab
