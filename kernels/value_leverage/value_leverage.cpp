#include "kernels/value_leverage/value_leverage.h"

namespace kvlab {

// Per query head: cosines, the d x d sum, its factor, the solve. K and V are read twice.
OpCall call(const ValueLeverage& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim, heads = a.kv.group;
  return {"value_leverage",
          a.kv.num_rows,
          n,
          n,
          4 * n * d * a.kv.kv_bytes + 4 * n,
          heads * (4 * n * d + 3 * n * d * d + a.kv.num_rows * d * d * d / 3)};
}

}  // namespace kvlab
