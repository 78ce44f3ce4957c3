#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/dot_cpu.h"
#include "policies/kv/selector/sparq/sparq.h"

namespace kvlab {

namespace {

const float* newest_query(const KvRows& kv, const Queries* queries, std::int32_t row) {
  const Queries& q = queries[kv.sequence(row)];
  return q.data + (static_cast<std::int64_t>(q.count - 1) * kv.kv_heads + row % kv.kv_heads) * kv.group * kv.head_dim;
}

std::vector<std::int32_t> largest_channels(const SparqScores& a, const float* q) {
  const std::int32_t d = a.kv.head_dim;
  std::vector<float> size(static_cast<std::size_t>(d), 0.0F);
  for (std::int32_t h = 0; h < a.kv.group; ++h)
    for (std::int32_t c = 0; c < d; ++c) size[static_cast<std::size_t>(c)] += std::abs(q[static_cast<std::int64_t>(h) * d + c]);
  std::vector<std::int32_t> order(size.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t x, std::int32_t y) { return size[static_cast<std::size_t>(x)] > size[static_cast<std::size_t>(y)]; });
  order.resize(static_cast<std::size_t>(a.channels));
  std::sort(order.begin(), order.end());
  return order;
}

void probabilities(const SparqScores& a, std::int32_t row, const float* q, const std::vector<std::int32_t>& channels, float* p) {
  const std::int32_t d = a.kv.head_dim, n = a.kv.len[row];
  float part = 0.0F, whole = 0.0F;
  for (const std::int32_t c : channels) part += std::abs(q[c]);
  for (std::int32_t c = 0; c < d; ++c) whole += std::abs(q[c]);
  const float scale = part > 0.0F ? 1.0F / std::sqrt(static_cast<float>(d) * part / whole) : 0.0F;
  for (std::int32_t i = 0; i < n; ++i) {
    const float* key = a.kv.key(row, i);
    float z = 0.0F;
    for (const std::int32_t c : channels) z += q[c] * key[c];
    p[i] = z * scale;
  }
  const float top = *std::max_element(p, p + n);
  float sum = 0.0F;
  for (std::int32_t i = 0; i < n; ++i) sum += p[i] = std::exp(p[i] - top);
  for (std::int32_t i = 0; i < n; ++i) p[i] /= sum;
}

float log_sum(const SparqRest& a, std::int32_t row, const float* q) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.kv.head_dim));
  std::vector<float> z;
  for (std::int64_t i = 0; i < a.lists.size(row); ++i) z.push_back(scale * lane_dot(q, a.kv.key(row, a.lists.row(row)[i]), a.kv.head_dim));
  const float top = *std::max_element(z.begin(), z.end());
  float sum = 0.0F;
  for (const float x : z) sum += std::exp(x - top);
  return top + std::log(sum);
}

}  // namespace

void run_cpu(const SparqScores& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r];
    if (n == 0) continue;
    const float* q = newest_query(a.kv, a.queries, r);
    const std::vector<std::int32_t> channels = largest_channels(a, q);
    float *each = a.each + a.kv.group * a.kv.first[r], *mean = a.scores + a.kv.first[r];
    std::fill_n(mean, n, 0.0F);
    for (std::int64_t h = 0; h < a.kv.group; ++h) {
      probabilities(a, r, q + h * a.kv.head_dim, channels, each + h * n);
      for (std::int64_t i = 0; i < n; ++i) mean[i] += each[h * n + i] / static_cast<float>(a.kv.group);
    }
  }
}

void run_cpu(const SparqRest& a) {
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.kv.len[r];
    std::fill_n(a.k + r * d, d, 0.0F);
    a.position[r] = 0;
    for (std::int64_t c = 0; c < d; ++c) a.v[r * d + c] = n == 0 ? 0.0F : a.sum[r][c] / static_cast<float>(n);
    const float* q = newest_query(a.kv, a.queries, r);
    for (std::int64_t h = 0; h < a.kv.group; ++h) {
      const float* p = a.each + a.kv.group * a.kv.first[r] + h * n;
      double alpha = 0;
      for (std::int64_t i = 0; i < a.lists.size(r); ++i) alpha += static_cast<double>(p[a.lists.row(r)[i]]);
      const bool covers_all = a.lists.size(r) == n || alpha >= 1;
      a.log_weight[r * a.kv.group + h] =
          covers_all ? -std::numeric_limits<float>::infinity()
                     : log_sum(a, r, q + h * d) + static_cast<float>(std::log((1 - alpha) / std::max(alpha, 1e-30)));
    }
  }
}

}  // namespace kvlab
