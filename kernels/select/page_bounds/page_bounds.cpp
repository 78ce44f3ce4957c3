#include "kernels/select/page_bounds/page_bounds.h"

namespace kvlab {

OpCall call(const PageBounds& a) {
  OpCall c{.op = "page_bounds", .rows = a.kv.num_rows};
  const std::int64_t line = static_cast<std::int64_t>(a.kv.head_dim) * a.kv.kv_bytes;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t from = a.from[r], n = a.kv.len[r] - from;
    if (n <= 0) continue;
    const std::int64_t pages = (a.kv.len[r] - 1) / a.page_tokens - from / a.page_tokens + 1;
    c.tokens += n;
    c.outputs += pages;
    c.bytes += (n + 2 * pages + (from % a.page_tokens != 0 ? 2 : 0)) * line;
    c.flops += 2 * n * a.kv.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(PageBounds)

}  // namespace kvlab
