#include "policies/kv/scorer/query_centers/query_centers.h"

#include <cmath>
#include <vector>

namespace kvlab {

OpCall call(const QueryCenters& a) {
  OpCall c{.op = "query_centers", .rows = a.num_sequences};
  const std::int64_t d = a.head_dim;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const std::int64_t n = a.queries[s].count;
    c.tokens += n;
    c.outputs += a.q_heads;
    c.bytes += a.q_heads * (2 * n * d + 4 * (d + d / 2));
    c.flops += a.q_heads * n * (d / 2) * 7;
  }
  return c;
}

void run_cpu(const QueryCenters& a) {
  const std::int32_t d = a.head_dim, half = d / 2;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    for (std::int32_t h = 0; h < a.q_heads; ++h) {
      std::vector<double> mean(static_cast<std::size_t>(d)), size(static_cast<std::size_t>(half));
      for (std::int32_t t = 0; t < a.queries[s].count; ++t) {
        const float* q = a.queries[s].data + (std::int64_t{t} * a.q_heads + h) * d;
        for (std::int32_t c = 0; c < d; ++c) mean[static_cast<std::size_t>(c)] += static_cast<double>(q[c]);
        for (std::int32_t f = 0; f < half; ++f) size[static_cast<std::size_t>(f)] += std::hypot(double{q[f]}, double{q[f + half]});
      }
      const double n = a.queries[s].count > 0 ? a.queries[s].count : 1;
      const std::int64_t at = std::int64_t{s} * a.q_heads + h;
      for (std::int32_t c = 0; c < d; ++c) a.mean[at * d + c] = static_cast<float>(mean[static_cast<std::size_t>(c)] / n);
      for (std::int32_t f = 0; f < half; ++f) a.size[at * half + f] = static_cast<float>(size[static_cast<std::size_t>(f)] / n);
    }
  }
}

}  // namespace kvlab
