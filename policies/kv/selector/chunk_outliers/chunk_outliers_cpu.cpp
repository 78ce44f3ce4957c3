#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/dot_cpu.h"
#include "policies/kv/selector/chunk_outliers/chunk_outliers.h"

namespace kvlab {

namespace {

float fit(const ChunkOutliers& a, std::int32_t row, std::int32_t chunk) {
  const std::int64_t d = a.kv.head_dim;
  const float* mean = a.means[row] + chunk * d;
  const float size = std::sqrt(lane_dot(mean, mean, d));
  float worst = 1;
  for (std::int32_t i = chunk * a.chunk_tokens; i < (chunk + 1) * a.chunk_tokens; ++i) {
    const float* key = a.kv.key(row, i);
    worst = std::min(worst, lane_dot(key, mean, d) / std::max(std::sqrt(lane_dot(key, key, d)) * size, 1e-20F));
  }
  return worst;
}

}  // namespace

void run_cpu(const ChunkOutliers& a) {
  std::vector<float> fits;
  std::vector<std::int32_t> order;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.chosen[r] == 0) continue;
    fits.clear();
    for (std::int32_t c = 0; c < a.chunks[r]; ++c) fits.push_back(fit(a, r, c));
    order.resize(fits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t x, std::int32_t y) { return fits[static_cast<std::size_t>(x)] < fits[static_cast<std::size_t>(y)]; });
    const auto others = order.begin() + a.outliers[r];
    std::sort(order.begin(), others);
    std::sort(others, order.end());
    std::copy(order.begin(), others, a.outlier[r]);
    std::copy(others, order.end(), a.other[r]);
  }
}

}  // namespace kvlab
