#include "policies/kv/scorer/hidden_scores/hidden_scores.h"

namespace kvlab {

OpCall call(const HiddenScores& a) {
  std::int64_t tokens = 0, sequences = 0;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    tokens += a.new_tokens[s];
    sequences += a.new_tokens[s] > 0 ? 1 : 0;
  }
  const std::int64_t heads = a.kv.kv_heads, d = a.hidden_dim, mid = a.mid_dim;
  const std::int64_t weights = mid == 0 ? heads * (d + 1) : mid * (d + 1) + heads * (mid + 1);
  const std::int64_t products = mid == 0 ? heads * d : mid * d + heads * mid;
  return {.op = "hidden_scores",
          .rows = a.kv.num_rows,
          .tokens = tokens * heads,
          .outputs = tokens * heads,
          .bytes = 4 * tokens * (d + heads) + 2 * sequences * weights,
          .flops = 2 * tokens * products};
}

}  // namespace kvlab
