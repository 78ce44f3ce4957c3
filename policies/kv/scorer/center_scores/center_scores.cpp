#include "policies/kv/scorer/center_scores/center_scores.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

namespace kvlab {

OpCall call(const CenterScores& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim, group = a.kv.group;
  return {.op = "center_scores",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = n * d * a.kv.kv_bytes + 4 * a.kv.num_rows * group * (d + d / 2) + 4 * n,
          .flops = n * (group * (2 * d + d + 6) + 2 * d)};
}

namespace {

// The mean query of a head, turned to the mean of the later positions [head_dim], and the weights of the keys' sizes [head_dim / 2].
struct Center {
  std::vector<double> query, spread;
};

Center center_of(const CenterScores& a, std::int32_t sequence, std::int32_t q_head) {
  const std::int32_t d = a.kv.head_dim, half = d / 2;
  const float *means = a.mean[sequence] + std::int64_t{q_head} * d, *sizes = a.size[sequence] + std::int64_t{q_head} * half;
  const double scale = 1.0 / a.count[sequence];
  Center c{std::vector<double>(static_cast<std::size_t>(d)), std::vector<double>(static_cast<std::size_t>(half))};
  for (std::int32_t f = 0; f < half; ++f) {
    const std::complex<double> mean(scale * double{means[f]}, scale * double{means[f + half]});
    std::complex<double> turn = a.frequencies == nullptr ? 1.0 : 0.0;
    for (std::int32_t j = 0; a.frequencies != nullptr && j < a.num_offsets; ++j) {
      const double position = a.end[sequence] - 1 + std::ldexp(1.0, j);
      turn += std::polar(1.0 / a.num_offsets, position * double{a.frequencies[sequence * half + f]});
    }
    const std::complex<double> turned = mean * turn;
    c.query[static_cast<std::size_t>(f)] = turned.real(), c.query[static_cast<std::size_t>(f + half)] = turned.imag();
    c.spread[static_cast<std::size_t>(f)] = scale * double{sizes[f]} - std::abs(mean);
  }
  return c;
}

double product(const Center& c, const float* key, std::int32_t half) {
  double sum = 0;
  for (std::int32_t f = 0; f < half; ++f) {
    const double x = double{key[f]}, y = double{key[f + half]};
    const auto at = static_cast<std::size_t>(f);
    sum += c.query[at] * x + c.query[at + static_cast<std::size_t>(half)] * y + c.spread[at] * std::sqrt(x * x + y * y);
  }
  return sum;
}

void standardize(std::vector<double>& x) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, squares = 0;
  for (const double v : x) mean += v / n;
  for (const double v : x) squares += (v - mean) * (v - mean);
  const double deviation = std::max(std::sqrt(squares / n), 1e-6);
  for (double& v : x) v = (v - mean) / deviation;
}

}  // namespace

void run_cpu(const CenterScores& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    float* out = a.out + a.kv.first[r];
    std::vector<double> z(static_cast<std::size_t>(a.kv.len[r]));
    for (std::int32_t g = 0; g < a.kv.group && !z.empty(); ++g) {
      const Center center = center_of(a, a.kv.sequence(r), r % a.kv.kv_heads * a.kv.group + g);
      for (std::int32_t i = 0; i < a.kv.len[r]; ++i) z[static_cast<std::size_t>(i)] = product(center, a.kv.key(r, i), a.kv.head_dim / 2);
      standardize(z);
      for (std::size_t i = 0; i < z.size(); ++i) out[i] = g == 0 ? static_cast<float>(z[i]) : std::max(out[i], static_cast<float>(z[i]));
    }
  }
}

}  // namespace kvlab
