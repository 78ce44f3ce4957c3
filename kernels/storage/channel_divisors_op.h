#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Turns lines of largest |x| per channel into divisors.
//   kSmooth: lambda_c = m_c^exponent, 1 for zeros; with `pairs` RoPE's channels c and c + d / 2 take the larger m. The `outliers` channels
//     of largest m_c / lambda_c (ties to the lower) are multiplied by its ratio to the median. QServe, Lin et al. 2024, arXiv:2405.04532,
//     section 4.2.
//   kBalance: sqrt(max |k_c| / max |q_c|), 1 if either is 0. MiKV, Yang et al. 2024, arXiv:2402.18096, eq. 5 (its inverse).
struct ChannelDivisors {
  enum class Kind : std::uint8_t { kSmooth, kBalance };
  std::int32_t num_rows = 0, head_dim = 0;
  const std::int32_t* line = nullptr;  // [num_rows], -1: left out
  Kind kind = Kind::kSmooth;
  float* lines = nullptr;  // [*, head_dim]
  float exponent = 0.5F;
  bool pairs = false;
  std::int32_t outliers = 0;
  const float* largest_q = nullptr;  // [*, head_dim], of kBalance

  // Powers and roots count as 10 operations.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t used = num_rows - std::count(line, line + num_rows, -1), elements = used * head_dim;
    const bool smooth = kind == Kind::kSmooth;
    return {.op = smooth ? "smooth_channels" : "balance_channels",
            .rows = used,
            .outputs = used,
            .bytes = (smooth ? 8 : 12) * elements,
            .flops = elements * (smooth ? (outliers > 0 ? 12 : 10) : 11)};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(line, num_rows); }
  [[nodiscard]] std::int64_t room(std::int64_t /*row*/) const { return kind == Kind::kSmooth ? 2LL * head_dim : 0; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    if (line[row] < 0) return;
    float* const m = lines + std::int64_t{line[row]} * head_dim;
    if (kind == Kind::kSmooth) return smooth(team, m);
    team.each(head_dim, [&](std::int64_t c) {
      const float ratio = std::sqrt(m[c] / largest_q[std::int64_t{line[row]} * head_dim + c]);
      m[c] = ratio > 0.0F && std::isfinite(ratio) ? ratio : 1.0F;
    });
  }

 private:
  template <class Team>
  KVLAB_BODY void smooth(const Team& team, float* m) const {
    const std::int32_t d = head_dim, half = d / 2;
    float *const ratio = team.room(), *const largest = ratio + d;
    team.each(d, [&](std::int64_t c) { largest[c] = m[c]; });
    team.each(d, [&](std::int64_t c) {
      const std::int64_t other = !pairs || (d % 2 == 1 && c == d - 1) ? c : c < half ? c + half : c - half;
      const float top = largest[c] < largest[other] ? largest[other] : largest[c];
      m[c] = top > 0.0F ? std::pow(top, exponent) : 1.0F;
      if (!(m[c] > 0.0F)) m[c] = 1.0F;  // underflow
      ratio[c] = largest[c] / m[c];
    });
    if (outliers == 0) return;
    float* const median = largest;
    team.each(d, [&](std::int64_t c) {
      std::int32_t smaller = 0;
      for (std::int32_t i = 0; i < d; ++i) smaller += ratio[i] < ratio[c] || (ratio[i] == ratio[c] && i < c) ? 1 : 0;
      if (smaller == half) *median = ratio[c];
    });
    if (!(*median > 0.0F)) return;
    team.each(d, [&](std::int64_t c) {
      std::int32_t larger = 0;
      for (std::int32_t i = 0; i < d; ++i) larger += ratio[i] > ratio[c] || (ratio[i] == ratio[c] && i < c) ? 1 : 0;
      if (larger < outliers && ratio[c] > *median) m[c] *= ratio[c] / *median;
    });
  }
};
KVLAB_ROW_OP(ChannelDivisors)

}  // namespace kvlab
