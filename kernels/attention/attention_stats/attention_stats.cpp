#include "kernels/attention/attention_stats/attention_stats.h"

#include <algorithm>

namespace kvlab {

OpCall call(const AttentionStats& a) {
  OpCall c{.op = "attention_stats", .rows = a.kv.num_rows};
  const int outputs = (a.wants_sum ? 1 : 0) + (a.wants_sum_sq ? 1 : 0) + (a.wants_max ? 1 : 0);
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r], w = a.queries[a.kv.sequence(r)].count;
    if (w == 0) continue;
    const std::int64_t hidden = w > 1 ? std::min(w, n) * (std::min(w, n) - 1) / 2 : 0;  // masked pairs
    const std::int64_t pairs = std::max<std::int64_t>(w * n - hidden, 0);
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * a.kv.head_dim * a.kv.kv_bytes + w * a.kv.group * a.kv.head_dim * 2 + n * 4 * outputs;
    c.flops += 2 * pairs * a.kv.group * (a.kv.head_dim + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(AttentionStats)

}  // namespace kvlab
