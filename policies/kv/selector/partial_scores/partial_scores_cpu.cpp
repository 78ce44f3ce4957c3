#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "policies/kv/selector/partial_scores/partial_scores.h"

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

void run_cpu(const PartialScores& a) {
  const std::int64_t d = a.head_dim, w = a.width;
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  for_each_in_parallel(a.num_rows, [&](std::int64_t r) {
    const auto n = static_cast<std::size_t>(a.first[r + 1] - a.first[r]);
    if (n == 0) return;
    std::vector<float> q(static_cast<std::size_t>(w)), z(n);
    const Queries& queries = a.queries[r / a.kv_heads];
    const float* q0 = queries.data + (static_cast<std::int64_t>(queries.count - 1) * a.kv_heads + r % a.kv_heads) * a.group * d;
    float* out = a.scores + a.first[r];
    for (std::int32_t h = 0; h < a.group; ++h) {
      for (std::int64_t j = 0; j < w; ++j) q[static_cast<std::size_t>(j)] = scale * lane_dot(q0 + h * d, a.basis[r] + j * d, d);
      for (std::size_t i = 0; i < n; ++i) z[i] = lane_dot(q.data(), a.partial[r] + static_cast<std::int64_t>(i) * w, w);
      const float top = *std::max_element(z.begin(), z.end());
      for (std::size_t i = 0; i < n; ++i) out[i] = h == 0 ? z[i] - top : std::max(out[i], z[i] - top);
    }
  });
}

}  // namespace kvlab
