#include "kernels/storage/channel_stats/channel_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace kvlab {

namespace {

std::int64_t tokens_of(const ChannelStats& a, std::int32_t row) {
  if (a.source == ChannelStats::Source::kQueries) return static_cast<std::int64_t>(a.queries[a.kv.sequence(row)].count) * a.kv.group;
  return a.listed != nullptr ? a.listed->entries(row) : a.kv.len[row];
}

// Calls f(vector [head_dim]) for each vector that the row's numbers are computed from.
template <class F>
void for_each_vector(const ChannelStats& a, std::int32_t row, F&& f) {
  const std::int64_t d = a.kv.head_dim;
  if (a.source == ChannelStats::Source::kQueries) {
    const Queries& q = a.queries[a.kv.sequence(row)];
    const std::int64_t heads = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group, head0 = row % a.kv.kv_heads * a.kv.group;
    for (std::int64_t t = 0; t < q.count; ++t)
      for (std::int64_t g = 0; g < a.kv.group; ++g) f(q.data + (t * heads + head0 + g) * d);
    return;
  }
  const bool keys = a.source == ChannelStats::Source::kKeys;
  const std::int32_t n = a.listed != nullptr ? a.listed->count(row) : a.kv.len[row];
  for (std::int32_t i = 0; i < n; ++i) {
    const std::int32_t token = a.listed != nullptr ? a.listed->index[a.listed->first[row] + i] : i;
    f(keys ? a.kv.key(row, token) : a.kv.value(row, token));
  }
}

}  // namespace

OpCall call(const ChannelStats& a) {
  const std::int64_t d = a.kv.head_dim, element = a.source == ChannelStats::Source::kQueries ? 2 : a.kv.kv_bytes;
  OpCall c{.op = "channel_stats"};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.line[r] < 0) continue;
    const std::int64_t n = tokens_of(a, r);
    ++c.rows, ++c.outputs;
    c.tokens += n;
    c.bytes += n * d * element + (a.multiplies ? 8 : 4) * d;
    c.flops += 2 * n * d;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ChannelStats)

void run_cpu(const ChannelStats& a) {
  const std::int64_t d = a.kv.head_dim;
  std::vector<double> sum(static_cast<std::size_t>(d));
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.line[r] < 0) continue;
    std::fill(sum.begin(), sum.end(), 0.0);
    std::int64_t count = 0;
    for_each_vector(a, r, [&](const float* x) {
      ++count;
      for (std::int64_t c = 0; c < d; ++c) {
        double& s = sum[static_cast<std::size_t>(c)];
        s = a.kind == ChannelStats::Kind::kMaxAbs ? std::max(s, double{std::fabs(x[c])}) : s + double{x[c]} * double{x[c]};
      }
    });
    float* const out = a.out + a.line[r] * d;
    const double scale = a.kind == ChannelStats::Kind::kMaxAbs || count == 0 ? 1.0 : 1.0 / static_cast<double>(count);
    for (std::int64_t c = 0; c < d; ++c) {
      const auto value = static_cast<float>(sum[static_cast<std::size_t>(c)] * scale);
      out[c] = a.multiplies ? out[c] * value : value;
    }
  }
}

OpCall call(const SmoothChannels& a) {
  const std::int64_t rows = a.num_rows - std::count(a.line, a.line + a.num_rows, -1), elements = rows * a.head_dim;
  return {.op = "smooth_channels", .rows = rows, .outputs = rows, .bytes = 8 * elements, .flops = elements * (a.outliers > 0 ? 12 : 10)};
}
KVLAB_WITHOUT_CUDA(SmoothChannels)

void run_cpu(const SmoothChannels& a) {
  const auto d = static_cast<std::size_t>(a.head_dim);
  std::vector<float> ratio(d), sorted(d);
  std::vector<std::size_t> order(d);
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    if (a.line[r] < 0) continue;
    float* const m = a.lines + static_cast<std::int64_t>(a.line[r]) * a.head_dim;
    const std::vector<float> largest(m, m + d);
    for (std::size_t c = 0; c < d; ++c) {
      const std::size_t half = d / 2, other = !a.pairs || (d % 2 == 1 && c == d - 1) ? c : c < half ? c + half : c - half;
      const float top = std::max(largest[c], largest[other]);
      m[c] = top > 0.0F ? std::pow(top, a.exponent) : 1.0F;
      if (!(m[c] > 0.0F)) m[c] = 1.0F;  // underflow
      ratio[c] = largest[c] / m[c];
    }
    if (a.outliers == 0) continue;
    sorted = ratio;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(d / 2), sorted.end());
    const float median = sorted[d / 2];
    if (!(median > 0.0F)) continue;
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return ratio[x] > ratio[y]; });
    for (std::size_t i = 0; i < std::min(d, static_cast<std::size_t>(a.outliers)); ++i)
      if (ratio[order[i]] > median) m[order[i]] *= ratio[order[i]] / median;
  }
}

}  // namespace kvlab
