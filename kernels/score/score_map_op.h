#pragma once

#include <cmath>

#include "base/ceil_div.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Maps of scores, by element. An infinite a[i] (a protected token) is copied; divisors are at least 1e-12.
//   kPlus, kTimes, kOver  out[i] = (a_factor * a[i] + a_plus) op b[i], or without b; out may be a or b
//   kFill    out of token j of those in [begin[r], end[r]), or of the others: a_plus + a_factor * j
//   kPart    copies row r of a to out + start[r]
//   kGather  out[i] = a[start[r] + index[i]]; out is not a
//   kPowers  out[i] = a[i]^a_power * b[i]^b_power, in CPU memory: a layer's unnormalised budget share from entropy and variance. CAKE, Qin
//            et al. 2025
struct ScoreMap {
  enum class Kind : std::uint8_t { kPlus, kTimes, kOver, kFill, kPart, kGather, kPowers };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  Kind kind = Kind::kPlus;
  const float* a = nullptr;  // [first[num_rows]]
  float a_factor = 1.0F, a_plus = 0.0F;
  bool uses_b = false;
  const float* b = nullptr;                             // [first[num_rows]]
  const float* row_factor = nullptr;                    // [num_rows], of b; null: 1. CPU memory
  float* out = nullptr;                                 // [first[num_rows]]
  const std::int64_t* start = nullptr;                  // [num_rows] of kPart and kGather
  const std::int32_t* index = nullptr;                  // [first[num_rows]]
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_rows] of kFill
  bool outside = false;
  double a_power = 1, b_power = 1;

  [[nodiscard]] static ScoreMap fill(std::int32_t num_rows, const std::int64_t* first, const std::int32_t* begin, const std::int32_t* end,
                                     float value = 0.0F, float slope = 0.0F, float* scores = nullptr, bool outside = false) {
    ScoreMap map{num_rows, first, Kind::kFill, nullptr, slope, value};
    map.out = scores, map.begin = begin, map.end = end, map.outside = outside;
    return map;
  }

  [[nodiscard]] OpCall cost() const {
    std::int64_t n = 0;
    for (std::int32_t r = 0; r < num_rows; ++r) n += count(r);
    if (kind == Kind::kFill) return {.op = "fill_scores", .rows = num_rows, .outputs = n, .bytes = 4 * n};
    if (kind == Kind::kPart) return {.op = "part_scores", .rows = num_rows, .tokens = n, .outputs = n, .bytes = 8 * n};
    if (kind == Kind::kGather) return {.op = "gather_scores", .rows = num_rows, .tokens = n, .outputs = n, .bytes = 12 * n};
    if (kind == Kind::kPowers) return {.op = "layer_preference", .rows = n, .outputs = n, .bytes = 12 * n, .flops = 3 * n};
    return {.op = "score_map", .rows = num_rows, .tokens = n, .outputs = n, .bytes = n * (uses_b ? 12 : 8), .flops = n * (uses_b ? 4 : 2)};
  }
  // Per team, of a row.
  static constexpr std::int64_t kPartTokens = 1024;
  [[nodiscard]] std::int64_t rows() const {
    std::int64_t most = 0;
    for (std::int32_t r = 0; r < num_rows; ++r) most = most < count(r) ? count(r) : most;
    return num_rows * ceil_div(most, kPartTokens);
  }
  void shapes(auto&& visit) {
    visit(first, num_rows + 1), visit(row_factor, num_rows), visit(start, num_rows), visit(begin, num_rows), visit(end, num_rows);
  }
  void results(auto&& visit) {
    if (kind == Kind::kPowers) visit(out, first[num_rows]);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t part) const {
    const std::int64_t row = part % num_rows, from = part / num_rows * kPartTokens, rest = count(row) - from,
                       n = rest < kPartTokens ? rest : kPartTokens;
    if (n <= 0) return;
    const std::int64_t at = first[row] + from;
    if (kind == Kind::kFill)
      fill_part(team, row, from, n);
    else if (kind == Kind::kPart)
      team.each(n, [&](std::int64_t i) { out[start[row] + from + i] = a[at + i]; });
    else if (kind == Kind::kGather)
      team.each(n, [&](std::int64_t i) { out[at + i] = a[start[row] + index[at + i]]; });
    else if (kind == Kind::kPowers)
      team.each(n, [&](std::int64_t i) {
        out[at + i] = static_cast<float>(std::pow(double{a[at + i]}, a_power) * std::pow(double{b[at + i]}, b_power));
      });
    else
      team.each(n, [&](std::int64_t i) { map(row, at + i); });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const {
    const std::int64_t all = first[row + 1] - first[row];
    return kind != Kind::kFill ? all : outside ? all - (end[row] - begin[row]) : end[row] - begin[row];
  }
  // Before the gap, then after it.
  template <class Team>
  KVLAB_BODY void fill_part(const Team& team, std::int64_t row, std::int64_t from, std::int64_t n) const {
    const std::int64_t gap = outside ? begin[row] : 0, gap_tokens = outside ? end[row] - gap : begin[row], left = gap - from;
    const std::int64_t head = left < 0 ? 0 : left < n ? left : n;
    const float value = a_plus, slope = a_factor;
    float *const before = out + first[row] + from, *const after = before + gap_tokens;
    team.each(head, [&](std::int64_t i) { before[i] = value + slope * static_cast<float>(from + i); });
    team.each(n - head, [&](std::int64_t i) { after[head + i] = value + slope * static_cast<float>(from + head + i); });
  }
  KVLAB_BODY void map(std::int64_t row, std::int64_t i) const {
    const float x = a[i], y = a_factor * x + a_plus;
    if (std::isinf(x)) {
      out[i] = x;
    } else if (!uses_b) {
      out[i] = y;
    } else {
      const float z = (row_factor == nullptr ? 1.0F : row_factor[row]) * b[i];
      out[i] = kind == Kind::kPlus ? y + z : kind == Kind::kTimes ? y * z : y / (z < 1e-12F ? 1e-12F : z);
    }
  }
};
KVLAB_ROW_OP(ScoreMap)

}  // namespace kvlab
