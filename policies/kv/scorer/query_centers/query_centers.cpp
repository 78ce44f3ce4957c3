#include "policies/kv/scorer/query_centers/query_centers.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvlab {

OpCall call(const QueryCenters& a) {
  OpCall c{.op = "query_centers"};
  const std::int64_t d = a.head_dim;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const std::int64_t n = a.queries[s].count;
    if (n == 0) continue;
    c.rows += 1;
    c.tokens += n;
    c.outputs += a.q_heads;
    c.bytes += a.q_heads * (2 * n * d + 8 * (d + d / 2));
    c.flops += a.q_heads * n * (d / 2) * 7;
  }
  return c;
}

void run_cpu(const QueryCenters& a) {
  const std::int32_t d = a.head_dim, half = d / 2;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    if (a.queries[s].count > 0 && a.queries[s].first_position == 0) {
      std::fill_n(a.sum[s], std::int64_t{a.q_heads} * d, 0.0F);
      std::fill_n(a.size[s], std::int64_t{a.q_heads} * half, 0.0F);
    }
    for (std::int32_t h = 0; h < a.q_heads; ++h) {
      std::vector<double> sum(static_cast<std::size_t>(d)), size(static_cast<std::size_t>(half));
      for (std::int32_t t = 0; t < a.queries[s].count; ++t) {
        const float* q = a.queries[s].data + (std::int64_t{t} * a.q_heads + h) * d;
        for (std::int32_t c = 0; c < d; ++c) sum[static_cast<std::size_t>(c)] += static_cast<double>(q[c]);
        for (std::int32_t f = 0; f < half; ++f) size[static_cast<std::size_t>(f)] += std::hypot(double{q[f]}, double{q[f + half]});
      }
      for (std::int32_t c = 0; c < d; ++c) a.sum[s][std::int64_t{h} * d + c] += static_cast<float>(sum[static_cast<std::size_t>(c)]);
      for (std::int32_t f = 0; f < half; ++f)
        a.size[s][std::int64_t{h} * half + f] += static_cast<float>(size[static_cast<std::size_t>(f)]);
    }
  }
}

}  // namespace kvlab
