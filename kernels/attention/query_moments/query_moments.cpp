#include "kernels/attention/query_moments/query_moments.h"

#include <algorithm>

namespace kvlab {

// R has two entries per line.
OpCall call(const QueryMoments& a) {
  OpCall c{.op = "query_moments", .rows = a.num_sequences};
  const std::int64_t d = a.head_dim, square = a.wants_covariance ? d * d : 0;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const std::int64_t n = std::max(0, a.queries[s].count - a.skip_tokens);
    c.tokens += n;
    c.outputs += a.q_heads;
    c.bytes += a.q_heads * (n * d * 2 * (a.wants_covariance ? 2 : 1) + 4 * (d + square));
    c.flops += a.q_heads * (2 * n * d + 2 * n * square + 4 * d + 8 * square);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(QueryMoments)

}  // namespace kvlab
