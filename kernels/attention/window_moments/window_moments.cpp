#include "kernels/attention/window_moments/window_moments.h"

namespace kvlab {

OpCall call(const WindowMoments& a) {
  OpCall c{.op = "window_moments", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r], w = a.queries[a.kv.sequence(r)].count, pairs = causal_pairs(w, n) * a.kv.group;
    c.tokens += n;
    c.outputs += a.wants_scores ? n : 0;
    c.bytes += n * a.kv.head_dim * a.kv.kv_bytes + w * a.kv.group * a.kv.head_dim * 2 + (a.wants_scores ? 4 * n : 0);
    c.flops += pairs * (2 * a.kv.head_dim + 3 + (a.wants_spread ? 4 : 0));
  }
  return c;
}
KVLAB_WITHOUT_CUDA(WindowMoments)

}  // namespace kvlab
