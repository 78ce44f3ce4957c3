#include "kernels/select/column_basis/column_basis.h"

namespace kvlab {

OpCall call(const ColumnBasis& a) {
  OpCall c{.op = "column_basis", .rows = a.num_rows};
  const std::int64_t d = a.head_dim;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    if (a.chosen[r / a.kv_heads] == 0) continue;
    c.outputs += a.width;
    c.bytes += 4 * (a.skew ? d * d : d) + 4 * d * a.width;
    c.flops += a.skew ? 9 * d * d * d : 2 * d;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ColumnBasis)

}  // namespace kvlab
