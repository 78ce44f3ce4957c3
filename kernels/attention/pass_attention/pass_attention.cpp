#include "kernels/attention/pass_attention/pass_attention.h"

#include <algorithm>

namespace kvlab {

OpCall call(const PassAttention& a) {
  OpCall c{.op = "pass_attention", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, group = a.kv.group;
  const bool weighs_values = a.norms != PassAttention::Norms::kNone;
  const std::int64_t factor_bytes = a.norms == PassAttention::Norms::kHidden ? 2 * a.hidden_dim : weighs_values ? 4 : 0;  // per query
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r];
    for (const PassQueries& chunk : a.pass[static_cast<std::size_t>(a.kv.sequence(r))]) {
      const std::int64_t held = std::min<std::int64_t>(n, chunk.ctx_end - chunk.ctx_begin + std::min(a.sinks, chunk.ctx_begin));
      const std::int64_t t = chunk.queries.count;
      c.tokens += held;
      c.bytes += held * d * a.kv.kv_bytes + t * d * (a.kv.kv_bytes + 2 * group) + t * factor_bytes;
      c.flops += (t * held + causal_pairs(t, t)) * group * (2 * d + 1);
    }
    c.outputs += n;
    c.bytes += 4 * n;
    if (!weighs_values) continue;
    c.bytes += n * d * a.kv.kv_bytes + group * d * a.hidden_dim * 2;
    c.flops += n * group * (2 * d * a.hidden_dim + 2 * a.hidden_dim);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(PassAttention)

}  // namespace kvlab
