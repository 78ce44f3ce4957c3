#include <cmath>
#include <vector>

#include "kernels/dot_cpu.h"
#include "kernels/score/anchor_cosine/anchor_cosine.h"

namespace kvlab {

namespace {

float norm(const float* x, std::int64_t d) { return std::max(std::sqrt(lane_dot(x, x, d)), 1e-8F); }

}  // namespace

void run_cpu(const AnchorCosine& a) {
  const std::int64_t d = a.kv.head_dim;
  std::vector<double> sum(static_cast<std::size_t>(d));
  std::vector<float> anchor(static_cast<std::size_t>(d));
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int32_t i = a.begin[r]; i < a.end[r]; ++i) {
      const float* key = a.kv.key(r, i);
      const float scale = 1.0F / norm(key, d);
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += static_cast<double>(key[c] * scale);
    }
    const double count = std::max(1, a.end[r] - a.begin[r]);
    for (std::size_t c = 0; c < sum.size(); ++c) anchor[c] = static_cast<float>(sum[c] / count);
    const float scale = a.factor / (a.cosine ? norm(anchor.data(), d) : 1.0F);
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
      const float* key = a.kv.key(r, i);
      a.out[a.kv.first[r] + i] = scale * lane_dot(key, anchor.data(), d) / norm(key, d);
    }
  }
}

}  // namespace kvlab
