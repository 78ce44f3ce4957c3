#include "kernels/key_dot/key_dot.h"

namespace kvlab {

// Keys are read once, one vector per row.
OpCall call(const KeyDot& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim;
  return {"key_dot", a.kv.num_rows, n, n, n * (d * a.kv.kv_bytes + 4) + 4 * a.kv.num_rows * d, 2 * n * d};
}

}  // namespace kvlab
