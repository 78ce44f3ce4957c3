#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

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
