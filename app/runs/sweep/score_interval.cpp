#include "app/runs/sweep/score_interval.h"

#include <algorithm>
#include <cmath>

namespace kvlab {

namespace {

// 0 if one cache has all or none right.
double correlation(const PairedAnswers& a) {
  const double margins = (a.both + a.first) * (a.second + a.neither) * (a.both + a.second) * (a.first + a.neither);
  if (margins <= 0) return 0;
  const double product = a.both * a.neither - a.first * a.second;
  return (product > 0 ? std::max(0.0, product - a.all() / 2) : product) / std::sqrt(margins);
}

double combined(double x, double y, double correlation) { return std::sqrt(std::max(0.0, x * x - 2 * correlation * x * y + y * y)); }

}  // namespace

std::pair<double, double> wilson_interval(double k, double n) {
  constexpr double kZ = 1.959964;
  const double p = k / n, middle = (p + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ / (1 + kZ * kZ / n) * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n));
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

std::pair<double, double> paired_interval(const PairedAnswers& a) {
  const double n = a.all(), one = (a.both + a.first) / n, two = (a.both + a.second) / n, phi = correlation(a);
  const auto [one_low, one_high] = wilson_interval(one * n, n);
  const auto [two_low, two_high] = wilson_interval(two * n, n);
  return {std::max(-1.0, one - two - combined(one - one_low, two_high - two, phi)),
          std::min(1.0, one - two + combined(one_high - one, two - two_low, phi))};
}

}  // namespace kvlab
