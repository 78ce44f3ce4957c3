#include "policies/kv/scorer/top_direction/top_direction.h"

namespace kvlab {

// Q^T Q once (2 bytes per element), then d^2 products per iteration.
OpCall call(const TopDirection& a) {
  OpCall c{.op = "top_direction", .rows = a.num_sequences * a.kv_heads};
  const std::int64_t d = a.head_dim;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const std::int64_t queries = static_cast<std::int64_t>(a.queries[s].count) * a.kv_heads * a.group;
    c.tokens += a.queries[s].count;
    c.outputs += a.kv_heads;
    c.bytes += queries * d * 2 + a.kv_heads * d * 4;
    c.flops += 2 * queries * d * d + 2 * a.kv_heads * a.iterations * d * d;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(TopDirection)

}  // namespace kvlab
