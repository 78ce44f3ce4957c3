#include "policies/kv/disposal/slerp_pairs/slerp_pairs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace kvlab {

namespace {

constexpr double kNoAngle = 1e-4;  // sine below which the formula divides 0 by 0

double dot(const float* x, const float* y, std::int32_t n) {
  double sum = 0;
  for (std::int32_t c = 0; c < n; ++c) sum += static_cast<double>(x[c]) * static_cast<double>(y[c]);
  return sum;
}

// 0 where a vector has no direction.
double angle_of(const float* x, const float* y, std::int32_t n) {
  const double size = std::sqrt(dot(x, x, n) * dot(y, y, n));
  return size > 0 && std::isfinite(size) ? std::acos(std::clamp(dot(x, y, n) / size, -1.0, 1.0)) : 0;
}

void merge(float* x, float* y, std::int32_t n, double t, double angle, std::vector<double>& e) {
  const double nx = std::sqrt(dot(x, x, n)), ny = std::sqrt(dot(y, y, n));
  double wx = 1 - t, wy = t;
  if (std::sin(angle) > kNoAngle) {
    wx = std::sin((1 - t) * angle), wy = std::sin(t * angle);
  } else if (angle > 1) {
    wx = t < 0.5 ? 1 : 0, wy = 1 - wx;
  }
  wx = nx > 0 ? wx / nx : 0, wy = ny > 0 ? wy / ny : 0;
  double square = 0;
  for (std::int32_t c = 0; c < n; ++c) {
    const double mixed = wx * static_cast<double>(x[c]) + wy * static_cast<double>(y[c]);
    e[static_cast<std::size_t>(c)] = mixed;
    square += mixed * mixed;
  }
  if (!(square > 0) || !std::isfinite(square)) return;
  const double scale = 1 / std::sqrt(square);
  for (std::int32_t c = 0; c < n; ++c) {
    x[c] = static_cast<float>(nx * scale * e[static_cast<std::size_t>(c)]);
    y[c] = static_cast<float>(ny * scale * e[static_cast<std::size_t>(c)]);
  }
}

}  // namespace

OpCall call(const SlerpPairs& a) {
  const std::int64_t d = a.a.head_dim, vector = d * a.a.kv_bytes;
  OpCall c{.op = "slerp_pairs", .rows = a.a.num_rows};
  for (std::int32_t r = 0; r < a.a.num_rows; ++r) {
    const std::int64_t n = a.end[r] - a.begin[r], merged = n - std::min<std::int64_t>(n, a.retain[r]);
    c.tokens += n;
    c.outputs += merged;
    c.bytes += 2 * n * vector + merged * (vector + 4);
    c.flops += 14 * n * d;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(SlerpPairs)

void run_cpu(const SlerpPairs& a) {
  const std::int32_t d = a.a.head_dim;
  std::vector<double> angle, e(static_cast<std::size_t>(d));
  std::vector<std::int32_t> order;
  for (std::int32_t r = 0; r < a.a.num_rows; ++r) {
    const auto x = [&](std::int32_t i) { return a.values ? a.a.value(r, a.begin[r] + i) : a.a.key(r, a.begin[r] + i); };
    const auto y = [&](std::int32_t i) { return a.values ? a.b.value(r, a.begin[r] + i) : a.b.key(r, a.begin[r] + i); };
    const std::int32_t n = a.end[r] - a.begin[r];
    angle.clear();
    for (std::int32_t i = 0; i < n; ++i) angle.push_back(angle_of(x(i), y(i), d));
    order.resize(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t i, std::int32_t j) {
      return angle[static_cast<std::size_t>(i)] > angle[static_cast<std::size_t>(j)];
    });
    for (std::int32_t i = std::min(n, a.retain[r]); i < n; ++i) {
      const std::int32_t token = order[static_cast<std::size_t>(i)];
      merge(x(token), y(token), d, static_cast<double>(a.t), angle[static_cast<std::size_t>(token)], e);
    }
  }
}

}  // namespace kvlab
