#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// A number per pool of rows, from sums of scores in double:
//   kMass      mean over rows of factor * (sum of scores [0, head_end[r]) + sum of scores [tail_begin[r], tail_end[r])), each token once
//   kVariance  of finite scores (divisor: their number); 0 without any
//   kEntropy   of finite scores as shares of their sum, over the logarithm of their number; 0 of fewer than two; scores below 0 count as 0
struct PoolNumbers {
  enum class Kind : std::uint8_t { kMass, kVariance, kEntropy };
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;  // [num_pools * rows_per_pool + 1]
  const float* scores = nullptr;        // [first[...]]
  float* out = nullptr;                 // [num_pools]; in CPU memory, except masses
  Kind kind = Kind::kMass;
  const std::int32_t *head_end = nullptr, *tail_begin = nullptr, *tail_end = nullptr;  // [num_pools * rows_per_pool] of kMass
  float factor = 1.0F;

  [[nodiscard]] OpCall cost() const {
    std::int64_t n = 0;
    for (std::int64_t r = 0; r < num_rows(); ++r) n += tokens(r);
    return {.op = kind == Kind::kMass       ? "span_mass"
                  : kind == Kind::kVariance ? "score_variance"
                                            : "score_entropy",
            .rows = num_rows(),
            .tokens = n,
            .outputs = num_pools,
            .bytes = 4 * n + 4 * num_pools,
            .flops = (kind == Kind::kMass ? 1 : 3) * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_pools; }
  void shapes(auto&& visit) {
    visit(first, num_rows() + 1), visit(head_end, num_rows()), visit(tail_begin, num_rows()), visit(tail_end, num_rows());
  }
  void results(auto&& visit) {
    if (kind != Kind::kMass) visit(out, num_pools);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t pool) const {
    const double sum = total<double>(team, pool, [&](float x) { return adds(x) ? double{x} : 0; });
    if (kind == Kind::kMass) return team.once([&] { out[pool] = static_cast<float>(sum * double{factor} / rows_per_pool); });
    const auto count = total<std::int64_t>(team, pool, [](float x) { return std::isfinite(x) ? 1 : 0; });
    const double second = total<double>(
        team, pool, [&](float x) { return adds(x) ? double{x} * (kind == Kind::kEntropy ? std::log(double{x}) : double{x}) : 0; });
    team.once([&] { out[pool] = count == 0 ? 0.0F : kind == Kind::kEntropy ? entropy(sum, second, count) : variance(sum, second, count); });
  }

 private:
  [[nodiscard]] std::int64_t num_rows() const { return std::int64_t{num_pools} * rows_per_pool; }
  // A row's tokens are [0, head(r)), all but for masses, and those from tail(r) on.
  [[nodiscard]] KVLAB_BOTH std::int64_t head(std::int64_t r) const { return kind == Kind::kMass ? head_end[r] : first[r + 1] - first[r]; }
  [[nodiscard]] KVLAB_BOTH std::int64_t tail(std::int64_t r) const { return tail_begin[r] < head_end[r] ? head_end[r] : tail_begin[r]; }
  [[nodiscard]] KVLAB_BOTH std::int64_t tokens(std::int64_t r) const {
    return head(r) + (kind == Kind::kMass && tail(r) < tail_end[r] ? tail_end[r] - tail(r) : 0);
  }
  [[nodiscard]] KVLAB_BODY bool adds(float x) const {
    return kind == Kind::kMass || (std::isfinite(x) && (kind != Kind::kEntropy || x > 0));
  }

  template <class T, class Team, class F>
  [[nodiscard]] KVLAB_BODY T total(const Team& team, std::int64_t pool, F&& f) const {
    T sum{};
    for (std::int64_t r = pool * rows_per_pool; r < (pool + 1) * rows_per_pool; ++r) {
      const std::int64_t end = head(r), gap = kind == Kind::kMass ? tail(r) - end : 0;
      const float* const x = scores + first[r];
      sum = team.template sum<T>(
          tokens(r), [&](std::int64_t i) { return f(x[i < end ? i : i + gap]); }, sum);
    }
    return sum;
  }
  static KVLAB_BODY float entropy(double sum, double sum_log, std::int64_t count) {
    return count < 2 || sum <= 0 ? 0.0F : static_cast<float>((std::log(sum) - sum_log / sum) / std::log(static_cast<double>(count)));
  }
  static KVLAB_BODY float variance(double sum, double squares, std::int64_t count) {
    const double mean = sum / static_cast<double>(count), x = squares / static_cast<double>(count) - mean * mean;
    return static_cast<float>(x > 0 ? x : 0);
  }
};
KVLAB_ROW_OP(PoolNumbers)

}  // namespace kvlab
