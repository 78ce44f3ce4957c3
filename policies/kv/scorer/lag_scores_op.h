#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Tokens [begin[r], begin[r] + partitions[r] * lag) in partitions of `lag`. x~_c = (x_c - min_c) / (max_c - min_c + epsilon) with the
// extremes over the next partition, then the standard deviation of x~ over channels (divisor d - 1), softmax over the partition, and the
// mean of keys and values. With `ranks` the score is the token's rank in its partition / lag (0: lowest; ties: the earlier is lower). Other
// scores stay. LagKV, Liang et al. 2025.
struct LagScores {
  KvRows kv;
  const std::int32_t* begin = nullptr;       // [num_rows]
  const std::int32_t* partitions = nullptr;  // [num_rows]; begin + (partitions + 1) * lag <= len if > 0
  std::int32_t lag = 1;
  bool ranks = false;
  float epsilon = 0.0F;
  float* scores = nullptr;  // [kv.total()]

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "lag_scores", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t scored = std::int64_t{partitions[r]} * lag, read = scored == 0 ? 0 : scored + lag;
      c.tokens += read;
      c.outputs += scored;
      c.bytes += 2 * read * kv.head_dim * kv.kv_bytes + 4 * scored;
      c.flops += 2 * (2 * read + 6 * scored) * kv.head_dim;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const {
    std::int64_t n = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) n += partitions[r];
    return n;
  }
  void shapes(auto&& visit) { visit(begin, kv.num_rows), visit(partitions, kv.num_rows), visit(kv); }
  [[nodiscard]] std::int64_t room(std::int64_t /*item*/) const { return 3LL * lag + 2LL * kv.head_dim; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    std::int64_t row = 0;
    while (item >= partitions[row]) item -= partitions[row++];
    const std::int64_t from = begin[row] + item * lag;
    float* const of_partition = scores + kv.first[row] + from;
    team.each(lag, [&](std::int64_t i) { of_partition[i] = 0.0F; });
    add_softmax(team, of_partition, from, [&](std::int64_t i) { return key_of(team, kv, row, i); });
    add_softmax(team, of_partition, from, [&](std::int64_t i) { return value_of(team, kv, row, i); });
    if (!ranks) return;
    auto* const order = reinterpret_cast<std::int32_t*>(team.room() + 2LL * lag + 2LL * kv.head_dim);
    team.sort(lag, order, [&](std::int32_t x, std::int32_t y) { return of_partition[x] < of_partition[y]; });
    team.each(lag, [&](std::int64_t rank) { of_partition[order[rank]] = static_cast<float>(rank) / static_cast<float>(lag); });
  }

 private:
  template <class Team, class Vectors>
  KVLAB_BODY void add_softmax(const Team& team, float* of_partition, std::int64_t from, const Vectors& vector) const {
    double* const spread = team.doubles();
    float *const low = team.room() + 2LL * lag, *const high = low + kv.head_dim;
    team.each(kv.head_dim, [&](std::int64_t c) {
      float least = INFINITY, most = -INFINITY;
      for (std::int64_t i = from + lag; i < from + 2LL * lag; ++i) {
        const float x = vector(i)[c];
        least = x < least ? x : least, most = most < x ? x : most;
      }
      low[c] = least, high[c] = most;
    });
    team.each(lag, [&](std::int64_t i) { spread[i] = deviation(vector(from + i), low, high); });
    const double top = team.max(lag, -static_cast<double>(INFINITY), [&](std::int64_t i) { return spread[i]; });
    team.each(lag, [&](std::int64_t i) { spread[i] = std::exp(spread[i] - top); });
    const double sum = team.template sum<double>(lag, [&](std::int64_t i) { return spread[i]; });
    team.each(lag, [&](std::int64_t i) { of_partition[i] += static_cast<float>(spread[i] / sum / 2); });
  }
  template <class Vector>
  [[nodiscard]] KVLAB_BODY double deviation(const Vector& x, const float* low, const float* high) const {
    const std::int64_t d = kv.head_dim;
    const auto relative = [&](std::int64_t c) { return static_cast<double>((x[c] - low[c]) / (high[c] - low[c] + epsilon)); };
    double sum = 0, squares = 0;
    for (std::int64_t c = 0; c < d; ++c) sum += relative(c);
    const double mean = sum / static_cast<double>(d);
    for (std::int64_t c = 0; c < d; ++c) squares += (relative(c) - mean) * (relative(c) - mean);
    return d > 1 ? std::sqrt(squares / static_cast<double>(d - 1)) : 0;
  }
};
KVLAB_ROW_OP(LagScores)

}  // namespace kvlab
