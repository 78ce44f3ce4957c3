#include "kernels/select/nearest_keys/nearest_keys.h"

#include <cmath>

namespace kvlab {

OpCall call(const NearestKeys& a) {
  OpCall c{.op = a.visit_frac < 1 ? "ann_search" : "nearest_keys", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.end[r] - a.begin[r];
    const auto visits = static_cast<std::int64_t>(std::ceil(a.visit_frac * static_cast<double>(n)));
    const std::int64_t lists = static_cast<std::int64_t>(a.keep[r]) * a.kv.group;
    c.tokens += visits;
    c.outputs += lists;
    c.bytes += visits * (a.visit_frac < 1 ? a.kv.group : 1) * a.kv.head_dim * a.kv.kv_bytes + 4 * lists;
    c.flops += 2 * visits * a.kv.group * a.kv.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(NearestKeys)

}  // namespace kvlab
