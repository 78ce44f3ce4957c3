#include "policies/kv/scorer/key_leverage/key_leverage.h"

namespace kvlab {

// The sketch, the Gram matrix, the triangular solve.
OpCall call(const KeyLeverage& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim, m = a.sketch_dim > 0 ? a.sketch_dim : d;
  const std::int64_t sketch = a.sketch_dim > 0 ? 2 * n * d * m : 0;
  return {
      "key_leverage", a.kv.num_rows, n, n, n * (d * a.kv.kv_bytes + 12 * m + 4), sketch + 3 * n * m * m + a.kv.num_rows * m * m * m / 3};
}
KVLAB_WITHOUT_CUDA(KeyLeverage)

}  // namespace kvlab
