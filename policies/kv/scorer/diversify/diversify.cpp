#include "policies/kv/scorer/diversify/diversify.h"

namespace kvlab {

// The sources' keys are read twice.
OpCall call(const Diversify& a) {
  OpCall c{.op = "diversify", .rows = a.kv.num_rows, .tokens = a.kv.total(), .outputs = a.kv.total(), .bytes = 8 * a.kv.total()};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r], sources = a.sources[r], d = a.kv.head_dim;
    c.bytes += (n + sources) * d * a.kv.kv_bytes;
    c.flops += 2 * n * (sources + 1) * d;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(Diversify)

}  // namespace kvlab
