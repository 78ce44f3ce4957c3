#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// out[i] = (a_factor * a[i] + a_plus) op b[i], or without b. An infinite a[i] (a protected token) is copied; a divisor is at least 1e-12.
// out may be a or b. kPart copies a, and row r goes to out + to[r]. kPowers: out[i] = a[i]^a_power * b[i]^b_power, in CPU memory; a layer's
// share of the budget, unnormalised, from its entropy and variance: CAKE, Qin et al. 2025.
struct ScoreMap {
  enum class Kind : std::uint8_t { kPlus, kTimes, kOver, kPart, kPowers };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  Kind kind = Kind::kPlus;
  const float* a = nullptr;  // [first[num_rows]]
  float a_factor = 1.0F, a_plus = 0.0F;
  bool uses_b = false;
  const float* b = nullptr;           // [first[num_rows]]
  const float* row_factor = nullptr;  // [num_rows], of b; null: 1. CPU memory
  float* out = nullptr;
  const std::int64_t* to = nullptr;  // [num_rows] of kPart
  double a_power = 1, b_power = 1;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = num_rows == 0 ? 0 : first[num_rows];
    if (kind == Kind::kPart) return {.op = "part_scores", .rows = num_rows, .tokens = n, .outputs = n, .bytes = 8 * n};
    if (kind == Kind::kPowers) return {.op = "layer_preference", .rows = n, .outputs = n, .bytes = 12 * n, .flops = 3 * n};
    return {.op = "score_map", .rows = num_rows, .tokens = n, .outputs = n, .bytes = n * (uses_b ? 12 : 8), .flops = n * (uses_b ? 4 : 2)};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(first, num_rows + 1), visit(row_factor, num_rows), visit(to, num_rows); }
  void results(auto&& visit) {
    if (kind == Kind::kPowers) visit(out, first[num_rows]);
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return first[row + 1] - first[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t at) const {
    const std::int64_t i = first[row] + at;
    const float x = a[i], y = a_factor * x + a_plus;
    if (kind == Kind::kPart) {
      out[to[row] + at] = x;
    } else if (kind == Kind::kPowers) {
      out[i] = static_cast<float>(std::pow(double{x}, a_power) * std::pow(double{b[i]}, b_power));
    } else if (std::isinf(x)) {
      out[i] = x;
    } else if (!uses_b) {
      out[i] = y;
    } else {
      const float z = (row_factor == nullptr ? 1.0F : row_factor[row]) * b[i];
      out[i] = kind == Kind::kPlus ? y + z : kind == Kind::kTimes ? y * z : y / (z < 1e-12F ? 1e-12F : z);
    }
  }
};
KVLAB_EACH_OP(ScoreMap)

}  // namespace kvlab
