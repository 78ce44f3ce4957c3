#include "kernels/attention/attention_stats/attention_stats.h"

#include <algorithm>

namespace kvlab {

namespace {

OpCall cost_of_votes(const AttentionStats& a) {
  OpCall c{.op = a.has_groups() ? "group_votes" : "recent_attention", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, heads = a.kv.kv_heads, group = a.kv.group;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int64_t w = a.queries[s].count, n = a.has_groups() ? a.kv.len[s * heads] : a.votes.first[s + 1] - a.votes.first[s];
    c.tokens += heads * n;
    c.outputs += a.has_groups() ? 0 : n;
    c.bytes += heads * (n * d * a.kv.kv_bytes + w * group * d * 2) + (a.has_groups() ? 8 * heads : 4) * n;
    c.flops += 2 * heads * group * causal_pairs(w, n) * (d + 1);
  }
  return c;
}

}  // namespace

OpCall call(const AttentionStats& a) {
  if (a.has_votes()) return cost_of_votes(a);
  OpCall c{.op = "attention_stats", .rows = a.kv.num_rows};
  const int outputs = (a.wants_sum ? 1 : 0) + (a.wants_sum_sq ? 1 : 0) + (a.wants_max ? 1 : 0);
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r], w = a.queries[a.kv.sequence(r)].count;
    if (w == 0) continue;
    const std::int64_t hidden = w > 1 ? std::min(w, n) * (std::min(w, n) - 1) / 2 : 0;  // masked pairs
    const std::int64_t pairs = std::max<std::int64_t>(w * n - hidden, 0);
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * a.kv.head_dim * a.kv.kv_bytes + w * a.kv.group * a.kv.head_dim * 2 + n * 4 * outputs;
    c.flops += 2 * pairs * a.kv.group * (a.kv.head_dim + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(AttentionStats)

}  // namespace kvlab
