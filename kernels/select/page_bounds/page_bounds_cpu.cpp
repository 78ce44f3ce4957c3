#include <algorithm>

#include "base/parallel.h"
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

void run_cpu(const PageBounds& a) {
  const std::int64_t d = a.kv.head_dim;
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    for (std::int32_t i = a.from[r]; i < a.kv.len[r]; ++i) {
      const float* key = a.kv.key(r, i);
      float* low = a.bounds[r] + i / a.page_tokens * 2 * d;
      float* high = low + d;
      if (i % a.page_tokens == 0) {
        std::copy_n(key, d, low);
        std::copy_n(key, d, high);
        continue;
      }
      for (std::int64_t c = 0; c < d; ++c) low[c] = std::min(low[c], key[c]);
      for (std::int64_t c = 0; c < d; ++c) high[c] = std::max(high[c], key[c]);
    }
  });
}

}  // namespace kvlab
