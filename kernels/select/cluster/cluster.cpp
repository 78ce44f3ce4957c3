#include "kernels/select/cluster/cluster.h"

#include <bit>

namespace kvlab {

OpCall call(const ClusterKeys& a) {
  OpCall c{.op = "cluster_keys", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.tokens[r], k = n == 0 ? 0 : a.clusters[r];
    c.tokens += n;
    c.outputs += k;
    c.bytes += (a.rounds + 2) * n * d * a.kv.kv_bytes + 4 * n + k * (d * a.kv.kv_bytes + 4);
    c.flops += a.rounds * (2 * n * k * d + n * d) + 4 * n * d;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ClusterKeys)

OpCall call(const ClusterThreshold& a) {
  OpCall c{.op = "cluster_threshold", .rows = a.num_rows};
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t w = a.queries[r / a.kv_heads].count, k = w == 0 ? 0 : a.clusters[r];
    if (k == 0) continue;
    const std::int64_t weights = w * k;
    c.tokens += k;
    c.bytes += k * (static_cast<std::int64_t>(a.head_dim) * a.kv_bytes + 4) + 2 * w * a.group * a.head_dim + 8 * weights;
    c.flops +=
        weights * (a.group * (2LL * a.head_dim + 4) + static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(weights))));
    c.outputs += r % a.kv_heads == 0 ? 1 : 0;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ClusterThreshold)

}  // namespace kvlab
