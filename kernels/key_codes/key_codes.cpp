#include "kernels/key_codes/key_codes.h"

namespace kvlab {

OpCall call(const TurnQueries& a) {
  OpCall c{"turn_queries", a.num_sequences, 0, 0, 0, 0};
  for (std::int32_t s = 0; s < a.num_sequences; ++s) c.outputs += a.queries[s].count;
  const std::int64_t values = c.outputs * a.num_heads * a.head_dim;
  c.bytes = 4 * values, c.flops = 3 * values;
  return c;
}

OpCall call(const TrainCodes& a) { return {"train_codes", a.kv.num_rows, 0, 0, 0, 0}; }

OpCall call(const AssignCodes& a) {
  OpCall c{"assign_codes", a.kv.num_rows, 0, 0, 0, 0};
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

OpCall call(const CodeScores& a) {
  OpCall c{"code_scores", a.num_rows, 0, 0, 0, 0};
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

}  // namespace kvlab
