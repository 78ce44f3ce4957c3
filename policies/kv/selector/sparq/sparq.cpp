#include "policies/kv/selector/sparq/sparq.h"

#include <algorithm>

namespace kvlab {

OpCall call(const SparqScores& a) {
  const std::int64_t n = a.kv.total();
  return {.op = "sparq_scores",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = n * (a.channels * a.kv.kv_bytes + 4),
          .flops = n * a.kv.group * (2LL * a.channels + 4)};
}
KVLAB_WITHOUT_CUDA(SparqScores)

OpCall call(const ValueSums& a) {
  OpCall c{.op = "value_sums", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r] - a.from[r];
    if (n <= 0) continue;
    c.tokens += n;
    c.outputs += 1;
    c.bytes += (n * a.kv.kv_bytes + 8) * a.kv.head_dim;
    c.flops += n * a.kv.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ValueSums)

OpCall call(const SparqRest& a) {
  const std::int64_t n = a.kv.num_rows;
  return {.op = "sparq_rest", .rows = n, .outputs = n, .bytes = n * a.kv.head_dim * (4 + a.kv.kv_bytes), .flops = n * a.kv.head_dim};
}
KVLAB_WITHOUT_CUDA(SparqRest)

OpCall call(const FlashPages& a) { return {.op = "flash_pages", .rows = a.num_rows}; }
KVLAB_WITHOUT_CUDA(FlashPages)

void run_cpu(const ValueSums& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.from[r] == 0) std::fill_n(a.sum[r], a.kv.head_dim, 0.0F);
    for (std::int32_t i = a.from[r]; i < a.kv.len[r]; ++i)
      for (std::int32_t c = 0; c < a.kv.head_dim; ++c) a.sum[r][c] += a.kv.value(r, i)[c];
  }
}

void run_cpu(const FlashPages& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    std::int32_t last = -1;
    a.count[r] = 0;
    for (std::int64_t i = 0; i < a.lists.size(r); ++i) {
      const std::int32_t page = a.lists.row(r)[i] / a.page_tokens;
      if (page != last) ++a.count[r];
      last = page;
    }
  }
}

}  // namespace kvlab
