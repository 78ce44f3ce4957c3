#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "policies/kv/selector/partial_scores/partial_scores.h"

namespace kvlab {

void run_cpu(const PartialScores& a) {
  const std::int64_t d = a.head_dim, w = a.width;
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  for_each_in_parallel(a.num_rows, [&](std::int64_t r) {
    const auto n = static_cast<std::size_t>(a.first[r + 1] - a.first[r]);
    if (n == 0) return;
    std::vector<float> q(static_cast<std::size_t>(w)), z(n);
    const Queries& queries = a.queries[r / a.kv_heads];
    const float* q0 = queries.data + (static_cast<std::int64_t>(queries.count - 1) * a.kv_heads + r % a.kv_heads) * a.group * d;
    float* out = a.scores + a.first[r];
    for (std::int32_t h = 0; h < a.group; ++h) {
      for (std::int64_t j = 0; j < w; ++j) q[static_cast<std::size_t>(j)] = scale * lane_dot(q0 + h * d, a.basis[r] + j * d, d);
      for (std::size_t i = 0; i < n; ++i) z[i] = lane_dot(q.data(), a.partial[r] + static_cast<std::int64_t>(i) * w, w);
      const float top = *std::max_element(z.begin(), z.end());
      for (std::size_t i = 0; i < n; ++i) out[i] = h == 0 ? z[i] - top : std::max(out[i], z[i] - top);
    }
  });
}

}  // namespace kvlab
