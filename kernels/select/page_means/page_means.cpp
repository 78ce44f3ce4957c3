#include "kernels/select/page_means/page_means.h"

#include <algorithm>

namespace kvlab {

OpCall call(const PageMeans& a) {
  OpCall c{.op = "page_means", .rows = a.kv.num_rows};
  const std::int64_t line = static_cast<std::int64_t>(a.kv.head_dim) * a.kv.kv_bytes;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t begin = a.first_window(r), end = a.windows(r);
    if (begin >= end) continue;
    const std::int64_t from = a.from[r], n = a.kv.len[r] - from, begun = a.begun_windows(r);
    c.tokens += n;
    c.outputs += end - begin;
    c.bytes += (n + end - begin + begun) * line;
    c.flops += begun * a.kv.head_dim;
    for (std::int64_t j = begin; j < end; ++j) {
      const std::int64_t first = std::max(from, j * a.stride_tokens);
      c.flops += (std::min<std::int64_t>(a.kv.len[r], j * a.stride_tokens + a.span_tokens) - first) * a.kv.head_dim;
    }
  }
  return c;
}
KVLAB_WITHOUT_CUDA(PageMeans)

}  // namespace kvlab
