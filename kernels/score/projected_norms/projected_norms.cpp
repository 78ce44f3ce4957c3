#include "kernels/score/projected_norms/projected_norms.h"

namespace kvlab {

OpCall call(const ProjectedNorms& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim, heads = a.kv.group;
  return {.op = "projected_norms",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = n * (d * a.kv.kv_bytes + 4) + 2 * a.kv.num_rows * heads * d * a.hidden_dim,
          .flops = 2 * n * heads * a.hidden_dim * (d + 1)};
}
KVLAB_WITHOUT_CUDA(ProjectedNorms)

}  // namespace kvlab
