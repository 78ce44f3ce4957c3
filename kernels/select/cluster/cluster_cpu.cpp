#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/lanes_cpu.h"
#include "kernels/select/cluster/cluster.h"

namespace kvlab {

namespace {

void scale_to_one(float* x, std::int64_t d) {
  const float length = std::sqrt(lane_dot(x, x, d));
  if (length > 0.0F)
    for (std::int64_t c = 0; c < d; ++c) x[c] /= length;
}

void assign(const RowMatrix& keys, const RowMatrix& centres, std::int32_t* cluster_of) {
  constexpr Eigen::Index kBlock = 256;
  RowMatrix z;
  for (Eigen::Index i0 = 0; i0 < keys.rows(); i0 += kBlock) {
    z.noalias() = keys.middleRows(i0, std::min(kBlock, keys.rows() - i0)) * centres.transpose();
    for (Eigen::Index i = 0; i < z.rows(); ++i) {
      const float* line = z.data() + i * z.cols();
      cluster_of[i0 + i] = static_cast<std::int32_t>(std::max_element(line, line + z.cols()) - line);
    }
  }
}

void add_up(const RowMatrix& keys, const std::int32_t* cluster_of, RowMatrix& sums, std::vector<std::int32_t>& sizes) {
  sums.setZero();
  std::fill(sizes.begin(), sizes.end(), 0);
  for (Eigen::Index i = 0; i < keys.rows(); ++i) {
    const std::int32_t cluster = cluster_of[i];
    for (Eigen::Index c = 0; c < keys.cols(); ++c) sums(cluster, c) += keys(i, c);
    ++sizes[static_cast<std::size_t>(cluster)];
  }
}

void cluster_row(const ClusterKeys& a, std::int32_t row) {
  const std::int64_t n = a.tokens[row], k = a.clusters[row], d = a.kv.head_dim;
  RowMatrix raw(n, d), sums(k, d);
  for (std::int32_t i = 0; i < n; ++i) std::copy_n(a.kv.key(row, i), d, raw.data() + i * d);
  RowMatrix keys = raw, centres(k, d);
  for (std::int64_t i = 0; i < n; ++i) scale_to_one(keys.data() + i * d, d);
  for (std::int64_t c = 0; c < k; ++c) centres.row(c) = keys.row((2 * c + 1) * n / (2 * k));
  std::vector<std::int32_t> sizes(static_cast<std::size_t>(k));
  for (std::int32_t round = 0; round < a.rounds; ++round) {
    assign(keys, centres, a.cluster_of[row]);
    add_up(keys, a.cluster_of[row], sums, sizes);
    for (std::int64_t c = 0; c < k; ++c) {
      if (sizes[static_cast<std::size_t>(c)] == 0) continue;
      centres.row(c) = sums.row(c);
      scale_to_one(centres.data() + c * d, d);
    }
  }
  add_up(raw, a.cluster_of[row], sums, sizes);
  for (std::int64_t c = 0; c < k; ++c) {
    const auto size = sizes[static_cast<std::size_t>(c)];
    for (std::int64_t x = 0; x < d; ++x) a.centroids[row][c * d + x] = sums(c, x) / static_cast<float>(std::max(size, 1));
    a.sizes[row][c] = size;
  }
}

struct Weight {
  float weight;
  std::int32_t size;
};

void weigh(const ClusterThreshold& a, std::int32_t row, const float* heads, std::vector<Weight>& all) {
  const std::int64_t d = a.head_dim;
  const auto k = static_cast<std::size_t>(a.clusters[row]);
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  std::vector<float> z(k), mean(k, 0.0F);
  for (std::int32_t h = 0; h < a.group; ++h) {
    for (std::size_t c = 0; c < k; ++c) z[c] = scale * lane_dot(heads + h * d, a.centroids[row] + static_cast<std::int64_t>(c) * d, d);
    const float top = *std::max_element(z.begin(), z.end());
    float sum = 0.0F;
    for (std::size_t c = 0; c < k; ++c) {
      z[c] = std::exp(z[c] - top);
      sum += static_cast<float>(a.sizes[row][c]) * z[c];
    }
    for (std::size_t c = 0; c < k; ++c) mean[c] += z[c] / sum / static_cast<float>(a.group);
  }
  for (std::size_t c = 0; c < k; ++c)
    if (a.sizes[row][c] > 0) all.push_back({mean[c], a.sizes[row][c]});
}

float threshold_of(std::vector<Weight>& all, double keep_frac) {
  std::stable_sort(all.begin(), all.end(), [](const Weight& x, const Weight& y) { return x.weight > y.weight; });
  double tokens = 0;
  for (const Weight& w : all) tokens += w.size;
  double room = keep_frac * tokens;
  for (const Weight& w : all) {
    room -= w.size;
    if (room < 0) return w.weight;
  }
  return -1.0F;
}

}  // namespace

void run_cpu(const ClusterKeys& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t r) {
    if (a.tokens[r] > 0) cluster_row(a, static_cast<std::int32_t>(r));
  });
}

void run_cpu(const ClusterThreshold& a) {
  std::vector<Weight> all;
  for (std::int32_t s = 0; s < a.num_rows / a.kv_heads; ++s) {
    const Queries& q = a.queries[s];
    all.clear();
    for (std::int32_t h = 0; h < a.kv_heads; ++h) {
      const std::int32_t row = s * a.kv_heads + h;
      if (a.clusters[row] == 0) continue;
      for (std::int32_t t = 0; t < q.count; ++t)
        weigh(a, row, q.data + (static_cast<std::int64_t>(t) * a.kv_heads + h) * a.group * a.head_dim, all);
    }
    if (!all.empty()) *a.threshold[s] = threshold_of(all, a.keep_frac[s]);
  }
}

}  // namespace kvlab
