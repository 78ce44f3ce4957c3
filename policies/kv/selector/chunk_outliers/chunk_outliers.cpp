#include "policies/kv/selector/chunk_outliers/chunk_outliers.h"

namespace kvlab {

OpCall call(const ChunkOutliers& a) {
  OpCall c{.op = "chunk_outliers", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.chosen[r] == 0) continue;
    const std::int64_t chunks = a.chunks[r], tokens = chunks * a.chunk_tokens;
    c.tokens += tokens;
    c.outputs += chunks;
    c.bytes += (tokens + chunks) * a.kv.head_dim * a.kv.kv_bytes + 4 * chunks;
    c.flops += 4 * tokens * a.kv.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ChunkOutliers)

}  // namespace kvlab
