#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Two layers share the directions of their keys (or values): tokens [begin[r], end[r]) of row r in both become |a| e and |b| e with
//   e = (sin((1 - t) w) a/|a| + sin(t w) b/|b|) / sin w,  w the angle between a and b
// except for the retain[r] tokens of largest angle, ties to the lower (MiniCache, Liu et al. 2024, arXiv:2405.14366, eq. 2-5). e has norm
// 1. If sin w is nearly 0, e is the plain mixture (1 - t) a/|a| + t b/|b| for w near 0, and the direction with the larger share for w near
// pi. A vector of norm 0 takes no part and stays 0.
struct SlerpPairs {
  KvRows a, b;                                                             // the same rows of two layers
  const std::int32_t *begin = nullptr, *end = nullptr, *retain = nullptr;  // [num_rows]
  bool values = false;
  float t = 0.6F;

  // Both vectors are read; of merged tokens one direction and two fp16 magnitudes are written. 14 operations per element.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t d = a.head_dim, vector = d * a.kv_bytes;
    OpCall c{.op = "slerp_pairs", .rows = a.num_rows};
    for (std::int32_t r = 0; r < a.num_rows; ++r) {
      const std::int64_t n = end[r] - begin[r], merged = n - std::min<std::int64_t>(n, retain[r]);
      c.tokens += n;
      c.outputs += merged;
      c.bytes += 2 * n * vector + merged * (vector + 4);
      c.flops += 14 * n * d;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return a.num_rows; }
  // Angles as doubles, marks, and an order.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return 4LL * (end[row] - begin[row]); }
  void shapes(auto&& visit) {
    const std::int64_t n = a.num_rows;
    visit(a), visit(b), visit(begin, n), visit(end, n), visit(retain, n);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t n = end[row] - begin[row], stay = n < retain[row] ? n : retain[row];
    double* const angle = team.doubles();
    auto *const stays = reinterpret_cast<std::int32_t*>(angle + n), *const order = stays + n;
    team.each(n, [&](std::int64_t i) {
      angle[i] = angle_of(pair(row, i));
      stays[i] = 0;
    });
    if constexpr (Team::kOnDevice) {
      team.best(
          n, stay, [&](std::int32_t i) { return static_cast<float>(angle[i]); }, [&](std::int32_t i) { stays[i] = 1; });
    } else {
      team.sort(n, order, [&](std::int32_t i, std::int32_t j) { return angle[i] > angle[j]; });
      for (std::int32_t i = 0; i < stay; ++i) stays[order[i]] = 1;
    }
    team.each(n, [&](std::int64_t i) {
      if (stays[i] == 0) merge(pair(row, i), angle[i]);
    });
  }

 private:
  static constexpr double kNoAngle = 1e-4;  // sine below which the formula divides 0 by 0

  // A token's vectors x and y in the two layers.
  struct Pair {
    void *data_x, *data_y;
    std::int64_t at_x, at_y;
    ElementType type;
    [[nodiscard]] KVLAB_BODY double x(std::int64_t c) const { return static_cast<double>(element_at(data_x, at_x + c, type)); }
    [[nodiscard]] KVLAB_BODY double y(std::int64_t c) const { return static_cast<double>(element_at(data_y, at_y + c, type)); }
  };
  [[nodiscard]] KVLAB_BODY Pair pair(std::int64_t row, std::int64_t i) const {
    const auto r = static_cast<std::int32_t>(row), token = begin[row] + static_cast<std::int32_t>(i);
    return {values ? a.v : a.k, values ? b.v : b.k, a.slot(r, token) * a.head_dim, b.slot(r, token) * a.head_dim, a.type};
  }
  template <class F>
  [[nodiscard]] KVLAB_BODY double sum(F&& f) const {
    double total = 0;
    for (std::int32_t c = 0; c < a.head_dim; ++c) total += f(c);
    return total;
  }
  [[nodiscard]] KVLAB_BODY double square_x(const Pair& p) const {
    return sum([&](std::int64_t c) { return p.x(c) * p.x(c); });
  }
  [[nodiscard]] KVLAB_BODY double square_y(const Pair& p) const {
    return sum([&](std::int64_t c) { return p.y(c) * p.y(c); });
  }
  // 0 where a vector has no direction.
  [[nodiscard]] KVLAB_BODY double angle_of(const Pair& p) const {
    const double size = std::sqrt(square_x(p) * square_y(p));
    if (!(size > 0 && std::isfinite(size))) return 0;
    const double cosine = sum([&](std::int64_t c) { return p.x(c) * p.y(c); }) / size;
    return std::acos(cosine < -1.0 ? -1.0 : 1.0 < cosine ? 1.0 : cosine);
  }
  KVLAB_BODY void merge(const Pair& p, double angle) const {
    const double nx = std::sqrt(square_x(p)), ny = std::sqrt(square_y(p)), share = static_cast<double>(t);
    double wx = 1 - share, wy = share;
    if (std::sin(angle) > kNoAngle) {
      wx = std::sin((1 - share) * angle), wy = std::sin(share * angle);
    } else if (angle > 1) {
      wx = share < 0.5 ? 1 : 0, wy = 1 - wx;
    }
    wx = nx > 0 ? wx / nx : 0, wy = ny > 0 ? wy / ny : 0;
    const auto mixed = [&](std::int64_t c) { return wx * p.x(c) + wy * p.y(c); };
    const double square = sum([&](std::int64_t c) { return mixed(c) * mixed(c); });
    if (!(square > 0) || !std::isfinite(square)) return;
    const double scale = 1 / std::sqrt(square);
    for (std::int32_t c = 0; c < a.head_dim; ++c) {
      const double x = mixed(c);
      set_element(p.data_x, p.at_x + c, p.type, static_cast<float>(nx * scale * x));
      set_element(p.data_y, p.at_y + c, p.type, static_cast<float>(ny * scale * x));
    }
  }
};
KVLAB_ROW_OP(SlerpPairs)

}  // namespace kvlab
