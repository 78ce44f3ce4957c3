#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dot_cpu.h"
#include "policies/kv/scorer/ring_attention/ring_attention.h"

namespace kvlab {

namespace {

// Adds weight * softmax(z) to out.
void add_softmax(const std::vector<float>& z, double weight, std::vector<double>& out) {
  const float largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const float x : z) sum += std::exp(static_cast<double>(x - largest));
  for (std::size_t i = 0; i < z.size(); ++i) out[i] += weight * std::exp(static_cast<double>(z[i] - largest)) / sum;
}

}  // namespace

void run_cpu(const RingAttention& a) {
  const std::int64_t d = a.kv.head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int32_t s = a.kv.sequence(r), w = std::min(a.ring_tokens, a.end[s]), older = std::max(0, a.kv.len[r] - w);
    float* out = a.out + a.kv.first[r];
    std::fill_n(out, a.kv.len[r], 0.0F);
    if (older == 0) continue;
    std::vector<double> sum(static_cast<std::size_t>(older));
    std::vector<float> z(static_cast<std::size_t>(older));
    for (std::int32_t t = a.end[s] - w; t < a.end[s]; ++t) {
      const std::int64_t head = std::int64_t{t % a.ring_tokens} * a.kv.kv_heads + r % a.kv.kv_heads;
      const float* q = a.ring[s] + head * a.kv.group * d;
      for (std::int32_t i = 0; i < older; ++i) {
        float largest = lane_dot(q, a.kv.key(r, i), d);
        for (std::int32_t g = 1; g < a.kv.group; ++g) largest = std::max(largest, lane_dot(q + g * d, a.kv.key(r, i), d));
        z[static_cast<std::size_t>(i)] = largest * scale;
      }
      add_softmax(z, 1.0 / w, sum);
    }
    std::transform(sum.begin(), sum.end(), out, [](double x) { return static_cast<float>(x); });
  }
}

}  // namespace kvlab
