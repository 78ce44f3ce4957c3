#include "policies/kv/scorer/key_dot/key_dot.h"

namespace kvlab {

// Keys are read once, one vector per row.
OpCall call(const KeyDot& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim;
  return {.op = "key_dot",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = n * (d * a.kv.kv_bytes + 4) + 4 * a.kv.num_rows * d,
          .flops = 2 * n * d};
}
KVLAB_WITHOUT_CUDA(KeyDot)

}  // namespace kvlab
