#include "policies/kv/scorer/value_leverage/value_leverage.h"

namespace kvlab {

// Per query head: cosines, the d x d sum, its factor, the solve.
OpCall call(const ValueLeverage& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim, heads = a.kv.group;
  return {.op = "value_leverage",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = 4 * n * d * a.kv.kv_bytes + 4 * n,
          .flops = heads * (4 * n * d + 3 * n * d * d + a.kv.num_rows * d * d * d / 3)};
}
KVLAB_WITHOUT_CUDA(ValueLeverage)

}  // namespace kvlab
