#include "kernels/merge/nearest_kept/nearest_kept.h"

namespace kvlab {

OpCall call(const NearestKept& a) {
  const KvRows& kv = a.rows.kv;
  const std::int64_t d = kv.head_dim, dropped = a.rows.total_dropped();
  OpCall c{.op = "nearest_kept",
           .rows = kv.num_rows,
           .tokens = kv.total(),
           .outputs = dropped,
           .bytes = kv.total() * (d * kv.kv_bytes + 4) + 8 * dropped,
           .flops = 2 * d * kv.total()};
  for (std::int32_t r = 0; r < kv.num_rows; ++r) c.flops += 2 * d * a.rows.num_kept(r) * a.rows.num_dropped(r);
  return c;
}
KVLAB_WITHOUT_CUDA(NearestKept)

}  // namespace kvlab
