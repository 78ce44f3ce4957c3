#include "kernels/select/query_basis/query_basis.h"

namespace kvlab {

OpCall call(const QueryGram& a) {
  OpCall c{.op = "query_gram", .rows = a.num_rows};
  const std::int64_t d = a.head_dim, sums = a.wants_gram ? d + d * d : d;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int32_t s = r / a.kv_heads;
    if (a.fresh[s] == 2 || a.queries[s].count == 0) continue;
    const std::int64_t lines = static_cast<std::int64_t>(a.queries[s].count) * a.group;
    c.outputs += sums;
    c.bytes += lines * d * 2 + 8 * sums;
    c.flops += lines * (d + (a.wants_gram ? 2 * d * d : 0));
  }
  return c;
}
KVLAB_WITHOUT_CUDA(QueryGram)

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

OpCall call(const ProjectKeys& a) {
  OpCall c{.op = "project_keys", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r] - a.from[r];
    if (n <= 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * ((a.copies_channels ? a.width : a.kv.head_dim) + a.width) * a.kv.kv_bytes;
    c.flops += a.copies_channels ? 0 : 2 * n * a.width * a.kv.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ProjectKeys)

}  // namespace kvlab
