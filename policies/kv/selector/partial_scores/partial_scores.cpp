#include "policies/kv/selector/partial_scores/partial_scores.h"

#include <algorithm>

namespace kvlab {

OpCall call(const PartialScores& a) {
  OpCall c{.op = "partial_scores", .rows = a.num_rows};
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t n = a.first[r + 1] - a.first[r];
    if (n == 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * a.width * a.kv_bytes + 4 * n + 2LL * a.group * a.head_dim;
    c.flops += n * a.group * (2LL * a.width + 3) + 2LL * a.group * a.width * a.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(PartialScores)

OpCall call(const FetchCounts& a) {
  const std::int64_t n = a.first[a.num_rows];
  return {.op = "fetch_counts", .rows = a.num_rows, .tokens = n, .outputs = a.num_rows, .bytes = 4 * n + 4LL * a.num_rows, .flops = n};
}
KVLAB_WITHOUT_CUDA(FetchCounts)

void run_cpu(const FetchCounts& a) {
  for (std::int32_t r0 = 0; r0 < a.num_rows; r0 += a.kv_heads) {
    const std::int64_t wanted =
        std::count_if(a.scores + a.first[r0], a.scores + a.first[r0 + a.kv_heads], [&](float score) { return score > -a.alpha; });
    for (std::int32_t r = r0; r < r0 + a.kv_heads; ++r)
      a.count[r] = static_cast<std::int32_t>(std::min<std::int64_t>(std::max<std::int64_t>(wanted / a.kv_heads, 1), a.cap[r]));
  }
}

}  // namespace kvlab
