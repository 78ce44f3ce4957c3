#pragma once

#include <cmath>

#include "kernels/kv_rows.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// One number per channel and row: the largest |x| or the mean square of keys, values or queries (all heads of the group); 0 without
// vectors. It is written to line `line[r]` of a table [*, head_dim], multiplied into it, or raises it to at least that; line -1: row left
// out.
//   kRunningMean  mean = (n mean + sum of x) / (n + their number), n = before[r]: of keys in `out`, of values in `values_out`. Stays
//     without vectors. RazorAttention, Tang et al. 2024, arXiv:2407.15891, eq. 3
struct ChannelStats {
  enum class Source : std::uint8_t { kKeys, kValues, kQueries };
  enum class Kind : std::uint8_t { kMaxAbs, kMeanSquare, kRunningMean };
  enum class Into : std::uint8_t { kWrite, kMultiply, kRaise };
  KvRows kv;
  Source source = Source::kKeys;
  Kind kind = Kind::kMaxAbs;
  ListedTokens listed = {};            // keys or values; first null: all of the rows
  const Queries* queries = nullptr;    // [num_sequences]
  const std::int32_t* line = nullptr;  // [num_rows]
  Into into = Into::kWrite;
  float* out = nullptr;  // [*, head_dim]
  // For kRunningMean.
  const std::int32_t* before = nullptr;  // [num_rows]
  float* values_out = nullptr;           // as out

  // Queries have 2 bytes per element, lines fp32.
  [[nodiscard]] OpCall cost() const {
    if (is_mean()) return cost_of_means();
    const std::int64_t d = kv.head_dim, element = source == Source::kQueries ? 2 : kv.kv_bytes;
    OpCall c{.op = into == Into::kRaise ? "largest_queries" : "channel_stats"};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      if (line[r] < 0) continue;
      const std::int64_t n = most_vectors(r);
      ++c.rows, ++c.outputs;
      c.tokens += n;
      c.bytes += n * d * element + (into == Into::kWrite ? 4 : 8) * d;
      c.flops += 2 * n * d;
    }
    return c;
  }
  // Per team, of a row.
  static constexpr std::int64_t kChannels = 32;
  [[nodiscard]] KVLAB_BOTH std::int64_t chunks() const { return (kv.head_dim + kChannels - 1) / kChannels; }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows * chunks() * (is_mean() ? 2 : 1); }
  [[nodiscard]] std::int64_t room(std::int64_t /*item*/) const { return 2 * kParts * kChannels; }
  void shapes(auto&& visit) {
    listed.kv = {};  // not read
    visit(queries, kv.num_sequences()), visit(line, kv.num_rows), visit(before, kv.num_rows), visit(listed.first, kv.num_rows + 1),
        visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const Source of = !is_mean() ? source : item < kv.num_rows * chunks() ? Source::kKeys : Source::kValues;
    const std::int64_t row = item / chunks() % kv.num_rows, begin = item % chunks() * kChannels, d = kv.head_dim;
    if (line[row] < 0) return;
    const std::int64_t n = vectors(team, row), width = d - begin < kChannels ? d - begin : kChannels, parts = Team::kOnDevice ? kParts : 1;
    if (is_mean() && n == 0) return;
    float* const to_row = (is_mean() && of == Source::kValues ? values_out : out) + line[row] * d + begin;
    const double earlier = is_mean() ? before[row] : 0;
    double* const sums = team.doubles();
    team.each(parts * width, [&](std::int64_t j) {
      double sum = earlier > 0 && j < width ? static_cast<double>(to_row[j]) * earlier : 0;
      for (std::int64_t i = j / width; i < n; i += parts) {
        const auto x = static_cast<double>(number(team, of, row, i, begin + j % width));
        sum = join(sum, kind == Kind::kMaxAbs ? std::fabs(x) : is_mean() ? x : x * x);
      }
      sums[j] = sum;
    });
    team.each(width, [&](std::int64_t c) {
      double sum = sums[c];
      for (std::int64_t part = 1; part < parts; ++part) sum = join(sum, sums[part * width + c]);
      const double scale = kind == Kind::kMaxAbs || n == 0 ? 1.0 : 1.0 / static_cast<double>(n);
      const auto value = static_cast<float>(is_mean() ? sum / (earlier + static_cast<double>(n)) : sum * scale);
      float& to = to_row[c];
      to = into == Into::kMultiply ? to * value : into == Into::kRaise ? (to < value ? value : to) : value;
    });
  }

 private:
  static constexpr std::int64_t kParts = 8;  // of the vectors, on a device

  [[nodiscard]] KVLAB_BOTH bool is_mean() const { return kind == Kind::kRunningMean; }
  [[nodiscard]] OpCall cost_of_means() const {
    OpCall c{.op = "mean_dropped", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = most_vectors(r), means = n > 0 ? 1 : 0;
      c.tokens += n;
      c.outputs += means;
      c.bytes += (2 * n + 4 * means) * d * kv.kv_bytes + 4 * n;
      c.flops += 2 * d * n + 4 * d * means;
    }
    return c;
  }

  [[nodiscard]] KVLAB_BODY double join(double sum, double x) const { return kind != Kind::kMaxAbs ? sum + x : sum < x ? x : sum; }
  // Up to the listed ones.
  [[nodiscard]] KVLAB_BOTH std::int64_t most_vectors(std::int64_t row) const {
    if (source == Source::kQueries) return std::int64_t{queries[row / kv.kv_heads].count} * kv.group;
    return listed.first != nullptr ? listed.entries(row) : kv.len[row];
  }
  template <class Team>
  KVLAB_BODY std::int64_t vectors(const Team& team, std::int64_t row) const {
    const std::int64_t most = most_vectors(row);
    if (source == Source::kQueries || listed.first == nullptr) return most;
    return team.template sum<std::int32_t>(most, [&](std::int64_t i) { return listed.index[listed.first[row] + i] < 0 ? 0 : 1; });
  }
  template <class Team>
  KVLAB_BODY float number(const Team& team, Source of, std::int64_t row, std::int64_t i, std::int64_t c) const {
    if (of == Source::kQueries) {
      const std::int64_t heads = std::int64_t{kv.kv_heads} * kv.group, head = row % kv.kv_heads * kv.group + i % kv.group;
      return queries[row / kv.kv_heads].data[(i / kv.group * heads + head) * kv.head_dim + c];
    }
    const std::int64_t token = listed.first != nullptr ? listed.index[listed.first[row] + i] : i;
    return (of == Source::kKeys ? key_of(team, kv, row, token) : value_of(team, kv, row, token))[c];
  }
};
KVLAB_ROW_OP(ChannelStats)

}  // namespace kvlab
