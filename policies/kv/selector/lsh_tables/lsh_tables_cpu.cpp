#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "base/parallel.h"
#include "kernels/lanes_cpu.h"
#include "policies/kv/selector/lsh_tables/lsh_tables.h"

namespace kvlab {

namespace {

using LshMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kLeastProbability = 1e-4;  // added to a probability, as the authors do

LshMatrix centered_keys(const LshBuild& a, std::int32_t row) {
  const std::int64_t d = a.kv.head_dim, n = a.end[row] - a.begin[row];
  LshMatrix keys(n, d);
  for (std::int64_t i = 0; i < n; ++i)
    keys.row(i) = Eigen::Map<const LshMatrix>(a.kv.key(row, a.begin[row] + static_cast<std::int32_t>(i)), 1, d);
  const Eigen::RowVectorXf mean = keys.colwise().mean();
  Eigen::Map<LshMatrix>(a.center[row], 1, d) = mean;
  keys.rowwise() -= mean;
  return keys;
}

// `ends` [buckets], `order` [keys].
void fill_table(const std::vector<std::int32_t>& bucket, std::int64_t buckets, std::int32_t* ends, std::int32_t* order) {
  std::fill_n(ends, buckets, 0);
  for (const std::int32_t b : bucket)
    if (b + 1 < buckets) ++ends[b + 1];
  for (std::int64_t b = 1; b < buckets; ++b) ends[b] += ends[b - 1];  // begins, until keys are put
  for (std::size_t i = 0; i < bucket.size(); ++i) order[ends[bucket[i]]++] = static_cast<std::int32_t>(i);
}

void build_row(const LshBuild& a, std::int32_t row) {
  const std::int64_t d = a.kv.head_dim, n = a.end[row] - a.begin[row], bits = a.shape.bits;
  const LshMatrix keys = centered_keys(a, row);
  std::vector<std::int32_t> bucket(static_cast<std::size_t>(n));
  for (std::int64_t t = 0; t < a.shape.tables; ++t) {
    const LshMatrix signs = keys * Eigen::Map<const LshMatrix>(a.projections + t * bits * d, bits, d).transpose();
    for (std::int64_t i = 0; i < n; ++i) {
      std::int32_t code = 0;
      for (std::int64_t b = 0; b < bits; ++b) code |= (signs(i, b) > 0 ? 1 : 0) << b;
      bucket[static_cast<std::size_t>(i)] = code;
    }
    std::int32_t* ends = a.table[row] + a.shape.table_size(n) / a.shape.tables * t;
    fill_table(bucket, a.shape.buckets(), ends, ends + a.shape.buckets());
  }
}

const float* last_query(const KvRows& kv, const Queries& q, std::int32_t row) {
  return q.data + ((q.count - 1LL) * kv.kv_heads + row % kv.kv_heads) * kv.group * kv.head_dim;
}

// Calls f(begin, end) for each table.
template <class F>
void for_buckets(const LshSample& a, std::int32_t row, const float* query, F&& f) {
  const std::int64_t d = a.kv.head_dim, stride = a.shape.table_size(a.keys[row]) / a.shape.tables;
  for (std::int64_t t = 0; t < a.shape.tables; ++t) {
    std::int32_t code = 0;
    for (std::int64_t b = 0; b < a.shape.bits; ++b)
      code |= (lane_dot(a.projections + (t * a.shape.bits + b) * d, query, d) > 0 ? 1 : 0) << b;
    const std::int32_t *ends = a.table[row] + stride * t, *order = ends + a.shape.buckets();
    f(order + (code == 0 ? 0 : ends[code - 1]), order + ends[code]);
  }
}

void sample_row(const LshSample& a, std::int32_t row) {
  const auto n = static_cast<std::size_t>(a.keys[row]);
  const float* query = last_query(a.kv, a.queries[a.kv.sequence(row)], row);
  std::vector<std::uint32_t> heads(n, 0);
  std::vector<std::uint16_t> found(n);
  std::int64_t looked_at = 0;
  for (std::int32_t g = 0; g < a.kv.group; ++g) {
    std::fill(found.begin(), found.end(), std::uint16_t{0});
    for_buckets(a, row, query + static_cast<std::int64_t>(g) * a.kv.head_dim, [&](const std::int32_t* at, const std::int32_t* end) {
      looked_at += end - at;
      for (; at != end; ++at) ++found[static_cast<std::size_t>(*at)];
    });
    for (std::size_t i = 0; i < n; ++i)
      if (found[i] >= 2) heads[i] |= 1U << g;
  }
  std::int64_t out = a.first[row];
  for (std::size_t i = 0; i < n; ++i)
    if (heads[i] != 0) a.unit[out] = static_cast<std::int32_t>(i), a.heads[out] = heads[i], ++out;
  a.count[row] = static_cast<std::int32_t>(out - a.first[row]);
  a.looked_at[row] = static_cast<std::int32_t>(std::min<std::int64_t>(looked_at, a.looked_at[row]));
}

float importance_weight(const LshShape& shape, double cosine) {
  return static_cast<float>(-std::log(shape.sampling_probability(cosine) + kLeastProbability));
}

void weigh_row(const LshWeights& a, std::int32_t row) {
  const std::int64_t d = a.kv.head_dim, group = a.kv.group, head = a.head[row], sampled = a.sample.size(row);
  const float* query = last_query(a.kv, a.queries[a.kv.sequence(row)], row);
  const std::int64_t first = a.index_first[row], end = a.index_first[row + 1];
  std::fill(a.log_weight + first * group, a.log_weight + end * group, 0.0F);
  std::vector<float> key(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < sampled; ++i) {
    const float* exact = a.kv.key(row, a.index[first + head + i]);
    for (std::int64_t c = 0; c < d; ++c) key[static_cast<std::size_t>(c)] = exact[c] - a.center[row][c];
    const double size = std::sqrt(static_cast<double>(lane_dot(key.data(), key.data(), d)));
    float* out = a.log_weight + (first + head + i) * group;
    for (std::int64_t g = 0; g < group; ++g) {
      const float* q = query + g * d;
      const double norms = size * std::sqrt(static_cast<double>(lane_dot(q, q, d)));
      const double cosine = norms > 0 ? static_cast<double>(lane_dot(q, key.data(), d)) / norms : 0;
      const bool samples = (a.heads[a.sample.first[row] + i] >> g & 1U) != 0;
      out[g] = samples ? importance_weight(a.shape, cosine) : -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace

double LshShape::sampling_probability(double cosine) const {
  const double same_sign = 1 - std::acos(std::clamp(cosine, -1.0, 1.0)) / std::numbers::pi;
  const double same_bucket = std::pow(same_sign, bits), not_in_one = std::pow(1 - same_bucket, tables - 1);
  return std::clamp(1 - not_in_one * (1 - same_bucket) - tables * same_bucket * not_in_one, 0.0, 1.0);
}

void run_cpu(const LshBuild& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t r) {
    if (a.begin[r] < a.end[r]) build_row(a, static_cast<std::int32_t>(r));
  });
}

void run_cpu(const LshSample& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t r) {
    if (a.keys[r] > 0)
      sample_row(a, static_cast<std::int32_t>(r));
    else
      a.count[r] = a.looked_at[r] = 0;
  });
}

void run_cpu(const LshWeights& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t r) { weigh_row(a, static_cast<std::int32_t>(r)); });
}

}  // namespace kvlab
