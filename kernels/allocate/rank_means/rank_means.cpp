#include "kernels/allocate/rank_means/rank_means.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace kvlab {

OpCall call(const RankMeans& a) {
  OpCall c{.op = "rank_means",
           .rows = a.num_pools * a.rows_per_pool,
           .outputs = a.out_first[a.num_pools],
           .bytes = 4 * a.out_first[a.num_pools]};
  for (std::int32_t r = 0; r < a.num_pools * a.rows_per_pool; ++r) {
    const std::int64_t n = a.first[r + 1] - a.first[r];
    const auto passes = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n)));
    c.tokens += n;
    c.bytes += 8 * n * passes;
    c.flops += 2 * n * passes;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(RankMeans)

void run_cpu(const RankMeans& a) {
  std::vector<float> row;
  for (std::int32_t p = 0; p < a.num_pools; ++p) {
    const std::int64_t n = a.out_first[p + 1] - a.out_first[p];
    float* out = a.out + a.out_first[p];
    std::fill_n(out, n, 0.0F);
    for (std::int32_t r = p * a.rows_per_pool; r < (p + 1) * a.rows_per_pool; ++r) {
      row.assign(a.scores + a.first[r], a.scores + a.first[r + 1]);
      for (float& x : row)
        if (std::isnan(x)) x = -std::numeric_limits<float>::infinity();
      std::sort(row.begin(), row.end(), std::greater<>());
      for (std::int64_t j = 0; j < n; ++j) out[j] += row[static_cast<std::size_t>(j)] / static_cast<float>(a.rows_per_pool);
    }
  }
}

}  // namespace kvlab
