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

OpCall call(const NearestAnchor& a) {
  const KvRows& kv = a.rows.kv;
  return {.op = "nearest_anchor",
          .rows = kv.num_rows,
          .tokens = kv.total(),
          .outputs = a.rows.total_dropped(),
          .bytes = 8 * kv.total() + 4 * a.rows.total_dropped(),
          .flops = 2 * kv.total()};
}
KVLAB_WITHOUT_CUDA(NearestAnchor)

void run_cpu(const NearestAnchor& a) {
  const KvRows& kv = a.rows.kv;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int32_t* kept = a.rows.kept + a.rows.kept_first[r];
    const std::int32_t count = a.rows.num_kept(r);
    std::int32_t next = 0;  // first kept token after the dropped one
    for (std::int64_t i = a.rows.dropped_first[r]; i < a.rows.dropped_first[r + 1]; ++i) {
      const std::int32_t token = a.rows.dropped[i];
      const auto position = [&](std::int32_t t) { return kv.position[kv.slot(r, t)]; };
      while (next < count && kept[next] < token) ++next;
      a.target[i] = next - 1;
      if (next < count && (next == 0 || position(kept[next]) - position(token) < position(token) - position(kept[next - 1])))
        a.target[i] = next;
    }
  }
}

}  // namespace kvlab
