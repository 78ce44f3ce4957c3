#include "policies/kv/selector/tree_select/tree_select.h"

#include <algorithm>

namespace kvlab {

std::int64_t TreeSelect::most_nodes(std::int32_t row) const {
  std::int64_t all = 0;
  for (std::int32_t j = 0; j < levels; ++j) all += (leaves[row] + (std::int64_t{1} << j) - 1) >> j;
  const std::int64_t roots = (leaves[row] + (std::int64_t{1} << (levels - 1)) - 1) >> (levels - 1);
  return std::min<std::int64_t>(all, roots + 2LL * (levels - 1) * keep[row]);
}

OpCall call(const MergeBounds& a) {
  OpCall c{.op = "merge_bounds", .rows = a.num_rows};
  const std::int64_t line = 2LL * a.head_dim * a.kv_bytes;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    if (a.from[r] >= a.children[r]) continue;
    const std::int64_t children = a.children[r] - a.from[r] / 2 * 2, parents = (children + 1) / 2;
    c.tokens += children;
    c.outputs += parents;
    c.bytes += (children + parents) * line;
    c.flops += 2 * children * a.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(MergeBounds)

OpCall call(const TreeSelect& a) {
  OpCall c{.op = "tree_select", .rows = a.num_rows};
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    if (a.keep[r] == 0) continue;
    const std::int64_t nodes = a.most_nodes(r);
    c.tokens += nodes;
    c.outputs += a.keep[r];
    c.bytes += nodes * 2 * a.head_dim * a.kv_bytes + 2LL * a.group * a.head_dim + 4LL * a.keep[r];
    c.flops += nodes * a.group * 4 * a.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(TreeSelect)

}  // namespace kvlab
