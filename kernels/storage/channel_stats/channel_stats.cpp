#include "kernels/storage/channel_stats/channel_stats.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvlab {

namespace {

std::int64_t tokens_of(const ChannelStats& a, std::int32_t row) {
  if (a.source == ChannelStats::Source::kQueries) return static_cast<std::int64_t>(a.queries[a.kv.sequence(row)].count) * a.kv.group;
  return a.listed != nullptr ? a.listed->entries(row) : a.kv.len[row];
}

// Calls f(vector [head_dim]) for each vector of the row.
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
  OpCall c{.op = a.into == ChannelStats::Into::kRaise ? "largest_queries" : "channel_stats"};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.line[r] < 0) continue;
    const std::int64_t n = tokens_of(a, r);
    ++c.rows, ++c.outputs;
    c.tokens += n;
    c.bytes += n * d * element + (a.into == ChannelStats::Into::kWrite ? 4 : 8) * d;
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
      out[c] = a.into == ChannelStats::Into::kMultiply ? out[c] * value
               : a.into == ChannelStats::Into::kRaise  ? std::max(out[c], value)
                                                       : value;
    }
  }
}

}  // namespace kvlab
