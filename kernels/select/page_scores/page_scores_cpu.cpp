#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "kernels/kv_rows.h"
#include "kernels/lanes_cpu.h"
#include "kernels/packets_cpu.h"
#include "kernels/select/page_scores/page_scores.h"

namespace kvlab {

namespace {

template <class T>
T term(const PageScores& a, const T& q, const T& low, const T& high) {
  using namespace Eigen::internal;
  const T x = pmul(q, low), y = pmul(q, high);
  if (a.kind == PageScores::Kind::kBound) return pmax(x, y);
  return padd(pmul(pset1<T>(a.max_share), y), pmul(pset1<T>(1.0F - a.max_share), x));
}

// z of unit `at` for all heads; reads the summary once.
template <int Heads>
void score_unit(const PageScores& a, const float* q, const float* summary, float scale, float* z, std::int64_t stride) {
  using namespace Eigen::internal;
  const std::int64_t d = a.head_dim;
  const bool dot = a.kind == PageScores::Kind::kDot;
  const float* high = summary + (dot ? 0 : d);
  Packet sum[Heads];
  for (int h = 0; h < Heads; ++h) sum[h] = pset1<Packet>(0.0F);
  std::int64_t c = 0;
  for (; c + kPacket <= d; c += kPacket) {
    const Packet x = ploadu<Packet>(summary + c), y = ploadu<Packet>(high + c);
    for (int h = 0; h < Heads; ++h) {
      const Packet query = ploadu<Packet>(q + h * d + c);
      sum[h] = dot ? pmadd(query, x, sum[h]) : padd(sum[h], term(a, query, x, y));
    }
  }
  for (int h = 0; h < Heads; ++h) {
    float total = predux(sum[h]);
    for (std::int64_t rest = c; rest < d; ++rest)
      total += dot ? q[h * d + rest] * summary[rest] : term(a, q[h * d + rest], summary[rest], high[rest]);
    z[h * stride] = scale * total;
  }
}

void softmax(const PageScores& a, std::int32_t row, std::span<float> z) {
  const float top = *std::max_element(z.begin(), z.end());
  float sum = 0.0F;
  for (std::size_t i = 0; i < z.size(); ++i) {
    z[i] = std::exp(z[i] - top);
    const std::size_t unit = a.lists_units ? static_cast<std::size_t>(a.unit[a.first[row] + static_cast<std::int64_t>(i)]) : i;
    sum += a.weighs_sizes ? static_cast<float>(a.sizes[row][unit]) * z[i] : z[i];
  }
  for (float& x : z) x /= sum;
}

void reduce(const PageScores& a, std::int32_t row, std::int32_t head, std::span<const float> z) {
  const auto n = static_cast<std::int64_t>(z.size());
  if (a.heads == PageScores::Heads::kEach) {
    std::copy(z.begin(), z.end(), a.scores + a.group * a.first[row] + head * n);
    return;
  }
  float* out = a.scores + a.first[row];
  for (std::int64_t i = 0; i < n; ++i) {
    const float x =
        a.heads == PageScores::Heads::kMean ? z[static_cast<std::size_t>(i)] / static_cast<float>(a.group) : z[static_cast<std::size_t>(i)];
    if (head == 0) {
      out[i] = x;
    } else {
      out[i] = a.heads == PageScores::Heads::kMax ? std::max(out[i], x) : out[i] + x;
    }
  }
}

void run_row(const PageScores& a, std::int32_t row) {
  const std::int64_t d = a.head_dim, width = a.kind == PageScores::Kind::kDot ? d : 2 * d;
  const std::int64_t begin = a.first[row], n = a.first[row + 1] - begin;
  if (n == 0) return;
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  const Queries& queries = a.queries[row / a.kv_heads];
  const float* q = queries.data + (static_cast<std::int64_t>(queries.count - 1) * a.kv_heads + row % a.kv_heads) * a.group * d;
  std::vector<float> z(static_cast<std::size_t>(n * a.group));
  for_each_in_streams(n, [&](std::int64_t i) {
    const float* summary = a.summaries[row] + (a.lists_units ? a.unit[begin + i] : i) * width;
    std::int32_t h = 0;
    for (; h + 4 <= a.group; h += 4) score_unit<4>(a, q + h * d, summary, scale, z.data() + h * n + i, n);
    for (; h < a.group; ++h) score_unit<1>(a, q + h * d, summary, scale, z.data() + h * n + i, n);
  });
  for (std::int32_t h = 0; h < a.group; ++h) {
    const std::span<float> of_head(z.data() + h * n, static_cast<std::size_t>(n));
    if (a.softmax) softmax(a, row, of_head);
    reduce(a, row, h, of_head);
  }
}

}  // namespace

void run_cpu(const PageScores& a) {
  for_each_in_parallel(a.num_rows, [&](std::int64_t row) { run_row(a, static_cast<std::int32_t>(row)); });
}

}  // namespace kvlab
