#include "policies/kv/selector/key_codes/key_codes.h"

namespace kvlab {

OpCall call(const TurnQueries& a) {
  OpCall c{.op = "turn_queries", .rows = a.num_sequences};
  for (std::int32_t s = 0; s < a.num_sequences; ++s) c.outputs += a.queries[s].count;
  const std::int64_t values = c.outputs * a.num_heads * a.head_dim;
  c.bytes = 4 * values, c.flops = 3 * values;
  return c;
}
KVLAB_WITHOUT_CUDA(TurnQueries)

OpCall call(const TrainCodes& a) { return {.op = "train_codes", .rows = a.kv.num_rows}; }
KVLAB_WITHOUT_CUDA(TrainCodes)

OpCall call(const AssignCodes& a) {
  OpCall c{.op = "assign_codes", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.to[r] - a.from[r];
    if (n <= 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += (n + a.codes[r]) * d * a.kv.kv_bytes + 2 * n;
    c.flops += 2 * n * d * (d + a.codes[r]);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(AssignCodes)

OpCall call(const CodeScores& a) {
  OpCall c{.op = "code_scores", .rows = a.num_rows};
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t n = a.first[r + 1] - a.first[r];
    if (n == 0) continue;
    c.tokens += n;
    c.outputs += n * a.group;
    c.bytes += static_cast<std::int64_t>(a.codes[r]) * a.head_dim * a.kv_bytes + (3 * n + 1) / 2 + 4 * n * a.group;
    c.flops += 2LL * a.group * a.codes[r] * a.head_dim + n * a.group;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(CodeScores)

}  // namespace kvlab
