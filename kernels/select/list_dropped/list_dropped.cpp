#include "kernels/select/list_dropped/list_dropped.h"

namespace kvlab {

OpCall call(const ListDropped& a) {
  const KvRows& kv = a.rows.kv;
  return {.op = "list_dropped",
          .rows = kv.num_rows,
          .tokens = kv.total(),
          .outputs = a.rows.total_dropped(),
          .bytes = 4 * kv.total(),
          .flops = kv.total()};
}
KVLAB_WITHOUT_CUDA(ListDropped)

void run_cpu(const ListDropped& a) {
  for (std::int32_t r = 0; r < a.rows.kv.num_rows; ++r) {
    const std::int32_t *kept = a.rows.kept + a.rows.kept_first[r], *end = a.rows.kept + a.rows.kept_first[r + 1];
    std::int32_t* out = a.dropped + a.rows.dropped_first[r];
    for (std::int32_t i = 0; i < a.rows.kv.len[r]; ++i) {
      if (kept != end && *kept == i) {
        ++kept;
      } else {
        *out++ = i;
      }
    }
  }
}

}  // namespace kvlab
