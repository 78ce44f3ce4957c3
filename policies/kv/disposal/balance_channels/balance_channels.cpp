#include "policies/kv/disposal/balance_channels/balance_channels.h"

#include <algorithm>
#include <cmath>

namespace kvlab {

OpCall call(const LargestQueries& a) {
  const std::int64_t d = a.kv.head_dim;
  OpCall c{.op = "largest_queries"};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.line[r] < 0) continue;
    const std::int64_t n = static_cast<std::int64_t>(a.queries[a.kv.sequence(r)].count) * a.kv.group;
    ++c.rows, ++c.outputs;
    c.tokens += n;
    c.bytes += 2 * n * d + 8 * d;
    c.flops += 2 * n * d;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(LargestQueries)

void run_cpu(const LargestQueries& a) {
  const std::int64_t d = a.kv.head_dim, heads = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.line[r] < 0) continue;
    float* const out = a.largest + a.line[r] * d;
    const Queries& q = a.queries[a.kv.sequence(r)];
    for (std::int64_t t = 0; t < q.count; ++t) {
      const float* const x = q.data + (t * heads + static_cast<std::int64_t>(r % a.kv.kv_heads) * a.kv.group) * d;
      for (std::int64_t i = 0; i < a.kv.group * d; ++i) out[i % d] = std::max(out[i % d], std::fabs(x[i]));
    }
  }
}

OpCall call(const BalanceChannels& a) {
  const std::int64_t rows = a.num_rows - std::count(a.line, a.line + a.num_rows, -1), elements = rows * a.head_dim;
  return {.op = "balance_channels", .rows = rows, .outputs = rows, .bytes = 12 * elements, .flops = 11 * elements};
}
KVLAB_WITHOUT_CUDA(BalanceChannels)

void run_cpu(const BalanceChannels& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    if (a.line[r] < 0) continue;
    const std::int64_t at = static_cast<std::int64_t>(a.line[r]) * a.head_dim;
    for (std::int64_t c = at; c < at + a.head_dim; ++c) {
      const float ratio = std::sqrt(a.lines[c] / a.largest_q[c]);
      a.lines[c] = ratio > 0.0F && std::isfinite(ratio) ? ratio : 1.0F;
    }
  }
}

}  // namespace kvlab
