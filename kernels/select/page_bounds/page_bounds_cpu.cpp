#include <algorithm>

#include "base/parallel.h"
#include "kernels/select/page_bounds/page_bounds.h"

namespace kvlab {

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
