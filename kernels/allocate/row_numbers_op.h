#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Counts scores of each row, with sums in double:
//   kAtLeast: at least `limit`, without NaN
//   kAbove: above `limit`, without NaN
//   kLeadingMass: of a descending row without negative scores the leading ones that hold the share `limit` of the sum; at least 1, or 0 for
//     an empty row
struct CountScores {
  enum class Kind : std::uint8_t { kAtLeast, kAbove, kLeadingMass };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;        // [first[num_rows]]
  Kind kind = Kind::kAtLeast;
  double limit = 0;
  std::int32_t* count = nullptr;  // [num_rows] out, in CPU memory

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = first[num_rows];
    return {.op = "count_scores",
            .rows = num_rows,
            .tokens = n,
            .outputs = num_rows,
            .bytes = 4 * n + 4LL * num_rows,
            .flops = (kind == Kind::kLeadingMass ? 2 : 1) * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(first, num_rows + 1); }
  void results(auto&& visit) { visit(count, num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const float* const x = scores + first[row];
    const std::int64_t n = first[row + 1] - first[row];
    if (kind == Kind::kLeadingMass) return count_mass(team, x, n, count[row]);
    const auto counts = [&](std::int64_t i) { return kind == Kind::kAbove ? double{x[i]} > limit : double{x[i]} >= limit; };
    const auto found = team.template sum<std::int32_t>(n, [&](std::int64_t i) { return counts(i) ? 1 : 0; });
    team.once([&] { count[row] = found; });
  }

 private:
  // Sums of stretches ascend and end in the total.
  template <class Team>
  KVLAB_BODY void count_mass(const Team& team, const float* x, std::int64_t n, std::int32_t& to) const {
    constexpr std::int64_t kStretch = 1024;
    const auto sum_to = [&](std::int64_t begin, double before) {
      const std::int64_t rest = n - begin;
      return team.template sum<double>(
          rest < kStretch ? rest : kStretch, [&](std::int64_t i) { return double{x[begin + i]}; }, before);
    };
    double total = 0, before = 0, after = 0;
    for (std::int64_t at = 0; at < n; at += kStretch) total = sum_to(at, total);
    std::int64_t begin = 0;
    for (; begin < n; begin += kStretch, before = after) {
      after = sum_to(begin, before);
      if (after >= limit * total) break;
    }
    team.once([&] {
      const std::int64_t end = begin + kStretch < n ? begin + kStretch : n;
      std::int64_t i = begin;
      for (bool is_reached = false; i < end && !is_reached; ++i) before += x[i], is_reached = before >= limit * total;
      to = static_cast<std::int32_t>(i < n ? i : n);
    });
  }
};
KVLAB_ROW_OP(CountScores)

// mean over the rows of pool p of factor * (sum of scores [0, head_end[r]) + sum of scores [tail_begin[r], tail_end[r])), tokens counted
// once.
struct SpanMass {
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;  // [num_pools * rows_per_pool + 1]
  const float* scores = nullptr;        // [first[...]]
  const std::int32_t* head_end = nullptr;
  const std::int32_t *tail_begin = nullptr, *tail_end = nullptr;  // [num_pools * rows_per_pool]
  float factor = 1.0F;
  float* mass = nullptr;  // [num_pools] out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t num_rows = std::int64_t{num_pools} * rows_per_pool;
    std::int64_t tokens = 0;
    for (std::int64_t r = 0; r < num_rows; ++r) tokens += head_end[r] + tail_tokens(r);
    return {
        .op = "span_mass", .rows = num_rows, .tokens = tokens, .outputs = num_pools, .bytes = 4 * tokens + 4 * num_pools, .flops = tokens};
  }
  [[nodiscard]] std::int64_t rows() const { return num_pools; }
  void shapes(auto&& visit) {
    const std::int64_t num_rows = std::int64_t{num_pools} * rows_per_pool;
    visit(first, num_rows + 1), visit(head_end, num_rows), visit(tail_begin, num_rows), visit(tail_end, num_rows);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t pool) const {
    double sum = 0;
    for (std::int64_t r = pool * rows_per_pool; r < (pool + 1) * rows_per_pool; ++r) {
      const float *const head = scores + first[r], *const tail = head + tail_end[r] - tail_tokens(r);
      sum = team.sum(
          head_end[r], [&](std::int64_t i) { return double{head[i]}; }, sum);
      sum = team.sum(
          tail_tokens(r), [&](std::int64_t i) { return double{tail[i]}; }, sum);
    }
    team.once([&] { mass[pool] = static_cast<float>(sum * double{factor} / rows_per_pool); });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t tail_tokens(std::int64_t r) const {
    const std::int32_t begin = tail_begin[r] < head_end[r] ? head_end[r] : tail_begin[r];
    return begin < tail_end[r] ? tail_end[r] - begin : 0;
  }
};
KVLAB_ROW_OP(SpanMass)

// Variance (divisor: their number) of the finite scores of the pool's rows; 0 without any. With `entropy` the entropy of the scores as
// shares of their sum, over the logarithm of their number; 0 of fewer than two; scores below 0 count as 0.
struct ScoreVariance {
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;  // [num_pools * rows_per_pool + 1]
  const float* scores = nullptr;        // [first[...]]
  float* out = nullptr;                 // [num_pools] in CPU memory
  bool entropy = false;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t num_rows = std::int64_t{num_pools} * rows_per_pool, n = first[num_rows];
    return {.op = entropy ? "score_entropy" : "score_variance",
            .rows = num_rows,
            .tokens = n,
            .outputs = num_pools,
            .bytes = 4 * n + 4 * num_pools,
            .flops = 3 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_pools; }
  void shapes(auto&& visit) { visit(first, std::int64_t{num_pools} * rows_per_pool + 1); }
  void results(auto&& visit) { visit(out, num_pools); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t pool) const {
    const float* const x = scores + first[pool * rows_per_pool];
    const std::int64_t n = first[(pool + 1) * rows_per_pool] - first[pool * rows_per_pool];
    const auto adds = [&](std::int64_t i) { return std::isfinite(x[i]) && (!entropy || x[i] > 0); };
    const auto count = team.template sum<std::int64_t>(n, [&](std::int64_t i) { return std::isfinite(x[i]) ? 1 : 0; });
    const double sum = team.template sum<double>(n, [&](std::int64_t i) { return adds(i) ? double{x[i]} : 0; });
    const double second = team.template sum<double>(n, [&](std::int64_t i) { return adds(i) ? double{x[i]} * factor(x[i]) : 0; });
    team.once([&] { out[pool] = count == 0 ? 0.0F : entropy ? entropy_of(sum, second, count) : variance_of(sum, second, count); });
  }

 private:
  [[nodiscard]] KVLAB_BODY double factor(float x) const { return entropy ? std::log(double{x}) : double{x}; }
  static KVLAB_BODY float entropy_of(double sum, double sum_log, std::int64_t count) {
    return count < 2 || sum <= 0 ? 0.0F : static_cast<float>((std::log(sum) - sum_log / sum) / std::log(static_cast<double>(count)));
  }
  static KVLAB_BODY float variance_of(double sum, double squares, std::int64_t count) {
    const double mean = sum / static_cast<double>(count), variance = squares / static_cast<double>(count) - mean * mean;
    return static_cast<float>(variance > 0 ? variance : 0);
  }
};
KVLAB_ROW_OP(ScoreVariance)

}  // namespace kvlab
