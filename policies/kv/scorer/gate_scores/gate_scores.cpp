#include "policies/kv/scorer/gate_scores/gate_scores.h"

namespace kvlab {

OpCall call(const GateScores& a) {
  std::int64_t tokens = 0, sequences = 0;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    tokens += a.new_tokens[s];
    sequences += a.new_tokens[s] > 0 ? 1 : 0;
  }
  const std::int64_t heads = a.kv.kv_heads, q_heads = heads * a.kv.group, d = a.hidden_dim, r = a.rank;
  const std::int64_t weights = q_heads * r * (d + 1) + heads * r * d + 2 * r + heads * a.sinks * r + q_heads;
  const std::int64_t products = (q_heads + heads) * r * d + q_heads * r * (a.sinks + 1);
  return {.op = "gate_scores",
          .rows = a.kv.num_rows,
          .tokens = tokens * heads,
          .outputs = tokens * heads,
          .bytes = 4 * tokens * (d + heads) + 2 * sequences * weights,
          .flops = 2 * tokens * products};
}

}  // namespace kvlab
