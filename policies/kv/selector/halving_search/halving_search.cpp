#include "policies/kv/selector/halving_search/halving_search.h"

namespace kvlab {

OpCall call(const HalvingSearch& a) {
  OpCall c{.op = "halving_search", .rows = a.kv.num_rows, .outputs = a.first[a.kv.num_rows], .bytes = 4 * a.first[a.kv.num_rows]};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t judged = 2LL * a.keep[r] * a.rounds(r);
    if (judged == 0) continue;
    c.tokens += judged;
    c.bytes += judged * (static_cast<std::int64_t>(a.kv.head_dim) * a.kv.kv_bytes + 8) + 2LL * a.kv.group * a.kv.head_dim;
    c.flops += judged * (2LL * a.kv.group * a.kv.head_dim + 2);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(HalvingSearch)

}  // namespace kvlab
