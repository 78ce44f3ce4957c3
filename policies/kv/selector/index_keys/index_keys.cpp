#include "policies/kv/selector/index_keys/index_keys.h"

#include <bit>

namespace kvlab {

OpCall call(const IndexKeys& a) {
  const std::int64_t d = a.kv.head_dim;
  std::int64_t n = 0;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) n += a.kv.len[r] - a.from[r];
  return {.op = "index_keys",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = n * (d * a.kv.kv_bytes + index_key_bytes(d)),
          .flops = n * d * std::countr_zero(static_cast<std::uint64_t>(d))};
}

OpCall call(const IndexScores& a) {
  OpCall c{.op = "index_scores", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, heads = a.kv.kv_heads;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int64_t n = a.first[s + 1] - a.first[s];
    c.tokens += heads * n;
    c.outputs += n;
    c.bytes += heads * n * index_key_bytes(d) + 4 * n + (n > 0 ? heads * a.kv.group * d * 2 : 0);
    c.flops += 2 * heads * a.kv.group * n * (d + 1);
  }
  return c;
}

}  // namespace kvlab
