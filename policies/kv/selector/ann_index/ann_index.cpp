#include "policies/kv/selector/ann_index/ann_index.h"

namespace kvlab {

OpCall call(const AnnAdd& a) {
  OpCall c{.op = "ann_add", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) c.outputs += a.to[r] > a.from[r] ? a.to[r] - a.from[r] : 0;
  c.tokens = c.outputs * (a.sizes.build_candidates + 2 * a.sizes.links);
  c.bytes = (c.tokens + c.outputs) * a.kv.head_dim * a.kv.kv_bytes + 4 * c.outputs * 2 * a.sizes.links;
  c.flops = 2 * c.tokens * a.kv.head_dim;
  return c;
}

OpCall call(const AnnSearch& a) {
  const std::int64_t room = a.kv.num_rows == 0 ? 0 : a.index_first[static_cast<std::int64_t>(a.kv.num_rows) * a.kv.group];
  return {.op = "ann_graph_search", .rows = a.kv.num_rows, .outputs = room, .bytes = 4 * room};
}

}  // namespace kvlab
