#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "kernels/lanes_cpu.h"
#include "policies/kv/scorer/expected_attention/expected_attention.h"

namespace kvlab {

namespace {

void fill_logits(const ExpectedAttention& a, std::int32_t row, std::int64_t head, std::vector<double>& z) {
  const std::int64_t d = a.kv.head_dim;
  const float* mean = a.mean + head * d;
  for_each_run(a.kv, row, [&](const KvRun& run) {
    const float* keys = a.kv.k + run.slot * d;
    RowMatrix turned;
    if (a.uses_covariance) {
      turned.noalias() = Eigen::Map<const RowMatrix>(keys, run.count, d) * Eigen::Map<const RowMatrix>(a.covariance + head * d * d, d, d);
    }
    for (std::int32_t i = 0; i < run.count; ++i) {
      const float* key = keys + i * d;
      double logit = static_cast<double>(lane_dot(key, mean, d)) / std::sqrt(static_cast<double>(d));
      if (a.uses_covariance) logit += static_cast<double>(lane_dot(key, turned.data() + i * d, d)) / static_cast<double>(d) / 2;
      const bool counts = a.kv.position[run.slot + i] >= a.sinks;
      z[static_cast<std::size_t>(run.begin + i)] = counts ? logit : -std::numeric_limits<double>::infinity();
    }
  });
}

void run_row(const ExpectedAttention& a, std::int32_t row) {
  float* out = a.out + a.kv.first[row];
  std::fill_n(out, a.kv.len[row], 0.0F);
  std::vector<double> z(static_cast<std::size_t>(a.kv.len[row]));
  for (std::int32_t g = 0; g < a.kv.group; ++g) {
    fill_logits(a, row, static_cast<std::int64_t>(row) * a.kv.group + g, z);
    const double top = z.empty() ? 0 : *std::max_element(z.begin(), z.end());
    if (top == -std::numeric_limits<double>::infinity()) continue;
    double sum = 0;
    for (double& x : z) x = std::exp(x - top), sum += x;
    for (std::size_t i = 0; i < z.size(); ++i) out[i] += static_cast<float>(z[i] / sum / a.kv.group);
  }
}

}  // namespace

void run_cpu(const ExpectedAttention& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t r) { run_row(a, static_cast<std::int32_t>(r)); });
}

}  // namespace kvlab
