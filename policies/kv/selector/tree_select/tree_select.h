#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// A binary tree of channel-wise key bounds over the pages of a row. Level 0 are the pages (leaves); node p of level j + 1 holds nodes 2p
// and 2p + 1 of level j. LeoAM, Sun et al. 2025.
namespace kvlab {

// Level j + 1 from level j, for parents of children from[r] and on.
struct MergeBounds {
  std::int32_t num_rows = 0, head_dim = 0, kv_bytes = 2;
  const std::int32_t* from = nullptr;      // [num_rows] first that changed
  const std::int32_t* children = nullptr;  // [num_rows] of level j
  const float* const* child = nullptr;     // [num_rows] -> [children, 2, head_dim]
  float* const* parent = nullptr;          // [num_rows] -> [ceil(children / 2), 2, head_dim]
};
OpCall call(const MergeBounds&);
void run_cpu(const MergeBounds&);
void run_cuda(const MergeBounds&, CudaContext&);

// The keep[r] leaves of largest bound on a query-key product (the best of the row's query heads), ascending, ties to the lower one: the
// same leaves as from scores of all.
struct TreeSelect {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2;
  const Queries* queries = nullptr;  // [num_rows / kv_heads], the last of each
  std::int32_t levels = 1;
  const float* const* bounds = nullptr;       // [levels * num_rows], level by level -> [nodes, 2, head_dim]
  const std::int32_t* leaves = nullptr;       // [num_rows] that may be chosen: 0, 1, ...
  const std::int32_t* keep = nullptr;         // [num_rows] at most `leaves`
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  std::int32_t* index = nullptr;              // out
  // Upper bound: the roots and both children of each ancestor of a chosen leaf, or all.
  [[nodiscard]] std::int64_t most_nodes(std::int32_t row) const;
};
OpCall call(const TreeSelect&);
void run_cpu(const TreeSelect&);
void run_cuda(const TreeSelect&, CudaContext&);  // scores all leaves

}  // namespace kvlab
