#include "policies/kv/scorer/chosen_heads/chosen_heads.h"

#include <algorithm>

#include "base/error.h"

namespace kvlab {

void check_heads(const ChosenHeads& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    if (a.kv.len[r] != a.kv.len[r / a.kv.kv_heads * a.kv.kv_heads])
      throw InternalError("chosen_heads: KV heads of a sequence hold different numbers of tokens");
}

OpCall call(const ChosenHeads& a) {
  check_heads(a);
  OpCall c{.op = "chosen_heads", .rows = a.kv.num_rows};
  const std::int64_t all = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group;
  const std::int64_t heads = a.finds_heads ? all : a.num_heads, kv_heads = std::min<std::int64_t>(a.kv.kv_heads, heads);
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int32_t row = s * a.kv.kv_heads;
    const std::int64_t n = a.kv.len[row], w = a.queries[s].count;
    c.tokens += n * kv_heads;
    c.outputs += n * a.kv.kv_heads;
    c.bytes += kv_heads * n * a.kv.head_dim * a.kv.kv_bytes + heads * w * a.kv.head_dim * 2 + 4 * n * a.kv.kv_heads;
    c.flops += heads * causal_pairs(w, n) * (2 * a.kv.head_dim + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ChosenHeads)

}  // namespace kvlab
