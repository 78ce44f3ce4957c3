#include "policies/kv/allocator/score_variance/score_variance.h"

#include <algorithm>
#include <cmath>

namespace kvlab {

OpCall call(const ScoreVariance& a) {
  const std::int32_t rows = a.num_pools * a.rows_per_pool;
  const std::int64_t n = a.first[rows];
  return {.op = a.entropy ? "score_entropy" : "score_variance",
          .rows = rows,
          .tokens = n,
          .outputs = a.num_pools,
          .bytes = 4 * n + 4 * a.num_pools,
          .flops = 3 * n};
}
KVLAB_WITHOUT_CUDA(ScoreVariance)

namespace {

// sum: of x; sum_log: of x log x.
float entropy_of(double sum, double sum_log, std::int64_t count) {
  return count < 2 || sum <= 0 ? 0.0F : static_cast<float>((std::log(sum) - sum_log / sum) / std::log(static_cast<double>(count)));
}

}  // namespace

void run_cpu(const ScoreVariance& a) {
  for (std::int32_t p = 0; p < a.num_pools; ++p) {
    double sum = 0, sum_sq = 0;
    std::int64_t count = 0;
    for (std::int64_t i = a.first[p * a.rows_per_pool]; i < a.first[(p + 1) * a.rows_per_pool]; ++i) {
      const auto x = static_cast<double>(a.scores[i]);
      if (!std::isfinite(x)) continue;
      ++count;
      if (a.entropy && x <= 0) continue;
      sum += x, sum_sq += a.entropy ? x * std::log(x) : x * x;
    }
    if (a.entropy) {
      *a.out[p] = entropy_of(sum, sum_sq, count);
      continue;
    }
    const double mean = count == 0 ? 0 : sum / static_cast<double>(count);
    *a.out[p] = count == 0 ? 0.0F : static_cast<float>(std::max(0.0, sum_sq / static_cast<double>(count) - mean * mean));
  }
}

}  // namespace kvlab
