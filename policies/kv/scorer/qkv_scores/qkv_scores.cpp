#include "policies/kv/scorer/qkv_scores/qkv_scores.h"

namespace kvlab {

OpCall call(const QkvScores& a) {
  std::int64_t tokens = 0, sequences = 0;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    tokens += a.new_tokens[s];
    sequences += a.new_tokens[s] > 0 ? 1 : 0;
  }
  const std::int64_t heads = a.kv.kv_heads, width = heads * (a.kv.group + 2) * a.kv.head_dim, weights = a.mid_dim * (width + heads);
  return {.op = "qkv_scores",
          .rows = sequences * heads,
          .tokens = tokens * heads,
          .outputs = tokens * heads,
          .bytes = tokens * (width * a.kv.kv_bytes + 4 * heads) + 2 * sequences * weights,
          .flops = 2 * tokens * weights};
}

}  // namespace kvlab
