#include <algorithm>

#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/page_scores/unit_scores.h"
#include "kernels/select/top_k/select_rows.h"
#include "policies/kv/selector/tree_select/tree_select.h"

namespace kvlab {

namespace {

struct Join {
  const std::int32_t *from, *children;
  const float* const* child;
  float* const* parent;
  std::int32_t head_dim;
  // Numbers of parents that change: [parents, 2, head_dim].
  __device__ std::int64_t count(int row) const {
    if (from[row] >= children[row]) return 0;
    return std::int64_t{(children[row] + 1) / 2 - from[row] / 2} * 2 * head_dim;
  }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t p = from[row] / 2 + i / (2 * head_dim);
    const auto c = static_cast<std::int32_t>(i % (2 * head_dim));
    const float x = child[row][2 * p * 2 * head_dim + c];
    const float y = 2 * p + 1 < children[row] ? child[row][(2 * p + 1) * 2 * head_dim + c] : x;
    parent[row][p * 2 * head_dim + c] = c < head_dim ? fminf(x, y) : fmaxf(x, y);
  }
};

}  // namespace

void run_cuda(const MergeBounds& a, CudaContext& cuda) {
  std::int64_t most = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    if (a.from[r] < a.children[r]) most = std::max<std::int64_t>(most, (a.children[r] + 1) / 2 - a.from[r] / 2);
  if (most == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [from, children, child, parent] = upload_all(cuda, host_array(a.from, a.num_rows), host_array(a.children, a.num_rows),
                                                          host_array(a.child, a.num_rows), host_array(a.parent, a.num_rows));
  launch_over_rows("merge_bounds", cuda, a.num_rows, most * 2 * a.head_dim, Join{from, children, child, parent, a.head_dim});
}

void run_cuda(const TreeSelect& a, CudaContext& cuda) {
  std::int64_t leaves = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r) leaves += a.keep[r] > 0 ? a.leaves[r] + 3 : 0;
  if (leaves == 0) return;
  const CudaContext::Frame frame(cuda);
  float* at = cuda.scratch<float>(leaves);
  std::vector<UnitRow> rows;
  std::vector<SelectRow> chosen;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    if (a.keep[r] <= 0) continue;
    const Queries& q = a.queries[r / a.kv_heads];
    const float* const query = q.data + (static_cast<std::int64_t>(q.count - 1) * a.kv_heads + r % a.kv_heads) * a.group * a.head_dim;
    rows.push_back({query, a.bounds[r], nullptr, at, a.leaves[r]});
    chosen.push_back({at, a.index + a.index_first[r], a.leaves[r], a.keep[r]});
    at += ceil_div(a.leaves[r], 4) * 4;  // rows aligned to 16 bytes
  }
  score_units("tree_select", {a.group, a.head_dim, UnitScores::Kind::kBound, UnitScores::Heads::kMax, 0, 1}, rows, cuda);
  select_indices(chosen, cuda);
}

}  // namespace kvlab
