#include "policies/kv/selector/lsh_tables/lsh_tables.h"

namespace kvlab {

OpCall call(const LshBuild& a) {
  OpCall c{.op = "lsh_build", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.end[r] - a.begin[r];
    if (n <= 0) continue;
    c.tokens += n;
    c.outputs += n * a.shape.tables;
    c.bytes += n * d * a.kv.kv_bytes + 4 * (a.shape.projections() * d + a.shape.table_size(n));
    c.flops += 2 * n * d * (1 + a.shape.projections());
  }
  return c;
}

OpCall call(const LshSample& a) {
  OpCall c{.op = "lsh_sample", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, group = a.kv.group;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.keys[r] <= 0) continue;
    c.outputs += a.shape.tables * group;
    c.bytes += 4 * a.shape.projections() * d + 2 * group * d + 8 * a.shape.tables * group;
    c.flops += 2 * a.shape.projections() * d * group;
  }
  return c;
}

OpCall call(const LshWeights& a) {
  OpCall c{.op = "lsh_weights", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, group = a.kv.group;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) c.tokens += a.sample.size(r);
  c.outputs = a.index_first[a.kv.num_rows];
  c.bytes = c.tokens * (d * a.kv.kv_bytes + 8) + 4 * group * c.outputs;
  c.flops = 2 * c.tokens * d * (group + 2);
  return c;
}

}  // namespace kvlab
