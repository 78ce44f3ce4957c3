#include "app/runs/sweep/score_interval.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvlab {

namespace {

// Degrees 1 to 30.
constexpr std::array<double, 30> kStudent = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                             2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                             2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};

// 0 if one cache has all or none right.
double correlation(const PairedAnswers& a) {
  const double margins = (a.both + a.first) * (a.second + a.neither) * (a.both + a.second) * (a.first + a.neither);
  if (margins <= 0) return 0;
  const double product = a.both * a.neither - a.first * a.second;
  return (product > 0 ? std::max(0.0, product - a.all() / 2) : product) / std::sqrt(margins);
}

double combined(double x, double y, double correlation) { return std::sqrt(std::max(0.0, x * x - 2 * correlation * x * y + y * y)); }

}  // namespace

double student_t_975(std::size_t degrees) {
  if (degrees <= kStudent.size()) return kStudent[degrees - 1];
  return 1.96 + 2.46 / static_cast<double>(degrees);  // error < 0.002
}

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
