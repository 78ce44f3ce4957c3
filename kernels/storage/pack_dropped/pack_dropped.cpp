#include "kernels/storage/pack_dropped/pack_dropped.h"

#include <algorithm>

namespace kvlab {

OpCall call(const PackDropped& a) {
  const KvRows& kv = a.rows.kv;
  const std::int64_t n = a.rows.total_dropped();
  return {.op = "pack_dropped", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = n * (4LL * kv.head_dim * kv.kv_bytes + 12)};
}
KVLAB_WITHOUT_CUDA(PackDropped)

void run_cpu(const PackDropped& a) {
  const KvRows& kv = a.rows.kv;
  float* out = a.packed;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    for (std::int64_t i = a.rows.dropped_first[r]; i < a.rows.dropped_first[r + 1]; ++i) {
      a.position[i] = kv.position[kv.slot(r, a.rows.dropped[i])];
      out = std::copy_n(kv.key(r, a.rows.dropped[i]), kv.head_dim, out);
      out = std::copy_n(kv.value(r, a.rows.dropped[i]), kv.head_dim, out);
    }
  }
}

}  // namespace kvlab
