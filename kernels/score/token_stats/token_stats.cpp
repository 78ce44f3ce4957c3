#include "kernels/score/token_stats/token_stats.h"

#include <algorithm>

namespace kvlab {

OpCall call(const TokenStats& a) {
  OpCall c{a.noise_seeds == nullptr ? "token_stats" : "token_stats_noise", a.kv.num_rows, 0, 0, 0, 0};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r], w = a.queries[a.kv.sequence(r)].count;
    if (w == 0) continue;
    const std::int64_t last = std::min(w, n), pairs = w * n - last * (last - 1) / 2;  // under the causal mask
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * a.kv.head_dim * a.kv.kv_bytes + w * a.kv.group * a.kv.head_dim * 2 + n * 8 * a.num_words();
    c.flops += 2 * pairs * (a.kv.group * (a.kv.head_dim + 1) + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(TokenStats)

}  // namespace kvlab
