#include "kernels/chosen_heads/chosen_heads.h"

#include <algorithm>

#include "base/error.h"

namespace kvlab {

OpCall call(const ChosenHeads& a) {
  OpCall c{"chosen_heads", a.kv.num_rows, 0, 0, 0, 0};
  const std::int64_t all = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group;
  const std::int64_t heads = a.finds_heads ? all : a.num_heads, kv_heads = std::min<std::int64_t>(a.kv.kv_heads, heads);
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int32_t row = s * a.kv.kv_heads;
    for (std::int32_t h = 1; h < a.kv.kv_heads; ++h)
      if (a.kv.len[row + h] != a.kv.len[row]) throw InternalError("chosen_heads: KV heads of a sequence hold different numbers of tokens");
    const std::int64_t n = a.kv.len[row], w = a.queries[s].count;
    c.tokens += n * kv_heads;
    c.outputs += n * a.kv.kv_heads;
    c.bytes += kv_heads * n * a.kv.head_dim * a.kv.kv_bytes + heads * w * a.kv.head_dim * 2 + 4 * n * a.kv.kv_heads;
    c.flops += heads * causal_pairs(w, n) * (2 * a.kv.head_dim + 1);
  }
  return c;
}

}  // namespace kvlab
