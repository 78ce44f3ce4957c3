#pragma once

#include <cmath>

#include "kernels/rows/kv_vector.h"
#include "kernels/rows/lane_sum.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Attention from the last w = min(ring_tokens, end) queries to all but the last w tokens, which get 0. out[i] = mean over queries of
// softmax over tokens of (max over the group of q.k / sqrt(d)). R-KV, Cai et al. 2025, arXiv:2505.24133.
struct RingAttention {
  KvRows kv;
  std::int32_t ring_tokens = 0;
  const std::int32_t* end = nullptr;   // [kv.num_sequences()] one past the last query's position
  const float* const* ring = nullptr;  // [kv.num_sequences()] -> [ring_tokens, kv_heads * group, head_dim], of CopyQueries
  float* out = nullptr;                // [kv.total()]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t d = kv.head_dim;
    OpCall c{.op = "ring_attention", .rows = kv.num_rows, .outputs = kv.total(), .bytes = 4 * kv.total()};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = older(r), queries = std::int64_t{votes(r)} * kv.group;
      if (n == 0) continue;
      c.tokens += n;
      c.bytes += n * d * kv.kv_bytes + 4 * queries * d;
      c.flops += 2 * queries * n * d;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) {
    const std::int64_t sequences = kv.num_sequences();
    visit(kv), visit(end, sequences), visit(ring, sequences);
  }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return 3 * older(row); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t s = row / kv.kv_heads, d = kv.head_dim;
    const std::int32_t w = votes(row), n = older(row);
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    double* const sums = team.doubles();
    float* const z = team.room() + 2LL * n;
    team.each(n, [&](std::int64_t i) { sums[i] = 0; });
    for (std::int32_t t = end[s] - w; t < end[s] && n > 0; ++t) {
      const float* const q = ring[s] + (std::int64_t{t % ring_tokens} * kv.kv_heads + row % kv.kv_heads) * kv.group * d;
      team.each(n, [&](std::int64_t i) { z[i] = largest_product(q, key_of(team, kv, row, i)) * scale; });
      const float top = team.max(n, -INFINITY, [&](std::int64_t i) { return z[i]; });
      const auto weight = [&](std::int64_t i) { return std::exp(static_cast<double>(z[i] - top)); };
      const double sum = team.template sum<double>(n, weight);
      team.each(n, [&](std::int64_t i) { sums[i] += 1.0 / w * weight(i) / sum; });
    }
    team.each(kv.len[row], [&](std::int64_t i) { out[kv.first[row] + i] = i < n ? static_cast<float>(sums[i]) : 0.0F; });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int32_t votes(std::int64_t row) const {
    const std::int32_t queries = end[row / kv.kv_heads];
    return ring_tokens < queries ? ring_tokens : queries;
  }
  [[nodiscard]] KVLAB_BOTH std::int32_t older(std::int64_t row) const { return kv.len[row] > votes(row) ? kv.len[row] - votes(row) : 0; }
  template <class Key>
  [[nodiscard]] KVLAB_BODY float largest_product(const float* q, const Key& key) const {
    float largest = dot_in_lanes(q, key, kv.head_dim);
    for (std::int32_t g = 1; g < kv.group; ++g) {
      const float x = dot_in_lanes(q + std::int64_t{g} * kv.head_dim, key, kv.head_dim);
      largest = largest < x ? x : largest;
    }
    return largest;
  }
};
KVLAB_ROW_OP(RingAttention)

}  // namespace kvlab
