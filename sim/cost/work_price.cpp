#include "sim/cost/work_price.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace kvlab {

namespace {

using Vector3 = std::array<double, 3>;

double dot(const Vector3& a, const Vector3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// Minimizes sum |row . x - 1|^2 over unknowns in `used`, others 0, by normal equations. nullopt if singular.
std::optional<Vector3> least_squares(std::span<const Vector3> rows, unsigned used) {
  std::vector<std::size_t> of;
  for (std::size_t i = 0; i < 3; ++i)
    if ((used >> i & 1U) != 0) of.push_back(i);
  std::array<Vector3, 3> a{};
  Vector3 b{}, x{};
  for (const Vector3& row : rows)
    for (const std::size_t i : of) {
      b[i] += row[i];
      for (const std::size_t j : of) a[i][j] += row[i] * row[j];
    }
  constexpr double kSingular = 1e-12;
  const Vector3 size{a[0][0], a[1][1], a[2][2]};
  for (std::size_t k = 0; k < of.size(); ++k) {
    const std::size_t p = of[k];
    if (a[p][p] <= kSingular * size[p]) return std::nullopt;
    for (std::size_t j = k + 1; j < of.size(); ++j) {
      const double f = a[of[j]][p] / a[p][p];
      for (const std::size_t c : of) a[of[j]][c] -= f * a[p][c];
      b[of[j]] -= f * b[p];
    }
  }
  for (std::size_t k = of.size(); k-- > 0;) {
    const std::size_t p = of[k];
    x[p] = (b[p] - dot(a[p], x)) / a[p][p];  // unknowns before p are still 0
  }
  return x;
}

}  // namespace

WorkPrice::WorkPrice(std::span<const PolicySample> samples) {
  for (const PolicySample& s : samples) {
    most_bytes_ = std::max(most_bytes_, static_cast<double>(s.bytes));
    most_flops_ = std::max(most_flops_, static_cast<double>(s.flops));
  }
  std::vector<Vector3> rows;  // of relative error: row . ps = 1
  for (const PolicySample& s : samples) {
    rows.push_back(work(static_cast<double>(s.bytes), static_cast<double>(s.flops)));
    for (double& w : rows.back()) w /= s.time.real();
  }
  double least = std::numeric_limits<double>::infinity();
  constexpr unsigned kLaunch = 1, kByte = 2, kFlop = 4;
  constexpr double kBetter = 1e-9;  // ties: a single sample scales with bytes
  for (const unsigned used : {kByte, kFlop, kLaunch, kByte | kFlop, kByte | kLaunch, kFlop | kLaunch, kByte | kFlop | kLaunch}) {
    const std::optional<Vector3> x = least_squares(rows, used);
    if (!x || std::any_of(x->begin(), x->end(), [](double ps) { return ps < 0; })) continue;
    double error = 0;
    for (const Vector3& row : rows) error += (dot(row, *x) - 1) * (dot(row, *x) - 1);
    if (error < least - kBetter) least = error, ps_ = *x;
  }
}

SampleGrid::Value WorkPrice::at(double bytes, double flops) const {
  const bool is_between = bytes <= most_bytes_ && flops <= most_flops_;
  return {dot(work(bytes, flops), ps_), is_between ? Footing::kInterpolated : Footing::kExtrapolated};
}

}  // namespace kvlab
