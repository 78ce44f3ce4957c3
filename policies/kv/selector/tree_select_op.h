#pragma once

#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

// A binary tree over the pages of a row, each node with the channel-wise bounds of the keys below it. Level 0 are the pages (leaves), node
// p of level j + 1 holds nodes 2p and 2p + 1 of level j. LeoAM, Sun et al. 2025.
namespace kvlab {

// The keep[r] leaves of largest bound on a query-key product (the best of the row's query heads), ties to the lower one, ascending. A
// search from the top would find them: the node of largest bound is split until enough leaves are at the top. Every leaf is scored here,
// the search is counted.
struct TreeSelect {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2;
  const Queries* queries = nullptr;  // [num_rows / kv_heads], the last one of each counts
  std::int32_t levels = 1;
  const float* const* bounds = nullptr;       // [levels * num_rows], level by level -> [nodes, 2, head_dim]
  const std::int32_t* leaves = nullptr;       // [num_rows] that may be chosen: 0, 1, ...
  const std::int32_t* keep = nullptr;         // [num_rows] at most `leaves`
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  std::int32_t* index = nullptr;              // out

  // Nodes that a search scores at most: the roots and both children of each ancestor of a chosen leaf, or all there are.
  [[nodiscard]] std::int64_t most_nodes(std::int32_t row) const {
    std::int64_t all = 0, roots = 0;
    for (std::int32_t j = 0; j < levels; ++j) all += roots = (leaves[row] + (std::int64_t{1} << j) - 1) >> j;
    return std::min<std::int64_t>(all, roots + 2LL * (levels - 1) * keep[row]);
  }
  // The most nodes of a search: 4 FLOPs per channel and query head, both bounds read.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "tree_select", .rows = num_rows};
    for (std::int32_t r = 0; r < num_rows; ++r) {
      if (keep[r] == 0) continue;
      const std::int64_t nodes = most_nodes(r);
      c.tokens += nodes;
      c.outputs += keep[r];
      c.bytes += nodes * 2 * head_dim * kv_bytes + 2LL * group * head_dim + 4LL * keep[r];
      c.flops += nodes * group * 4 * head_dim;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  // A bound and a mark of each leaf.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return keep[row] > 0 ? 2LL * leaves[row] : 0; }
  void shapes(auto&& visit) {
    visit(queries, num_rows / kv_heads), visit(bounds, num_rows), visit(leaves, num_rows), visit(keep, num_rows);
    visit(index_first, num_rows + 1);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    if (keep[row] <= 0) return;
    const std::int32_t n = leaves[row];
    float* const bound = team.room();
    auto* const marked = reinterpret_cast<std::int32_t*>(bound + n);
    const float* const q = queries[row / kv_heads].last(row % kv_heads, kv_heads, group, head_dim);
    team.each(n, [&](std::int64_t p) { bound[p] = bound_of(q, bounds[row] + p * 2 * head_dim); });
    mark_best(
        team, n, keep[row], [&](std::int32_t p) { return bound[p]; }, marked);
    team.pack(
        n, [&](std::int64_t p) { return marked[p] != 0; },
        [&](std::int64_t k, std::int64_t p) { index[index_first[row] + k] = static_cast<std::int32_t>(p); });
  }

 private:
  [[nodiscard]] KVLAB_BODY float bound_of(const float* q, const float* low) const {
    float best = 0.0F;
    for (std::int32_t h = 0; h < group; ++h, q += head_dim) {
      const float sum = sum_in_lanes(head_dim, [&](std::int64_t c) {
        const float x = q[c] * low[c], y = q[c] * low[head_dim + c];
        return x < y ? y : x;
      });
      best = h == 0 || best < sum ? sum : best;
    }
    return best;
  }
};
KVLAB_ROW_OP(TreeSelect)

}  // namespace kvlab
