#pragma once

#include <cstddef>
#include <utility>

namespace kvlab {

// 97.5 % quantile of Student's t; degrees >= 1.
double student_t_975(std::size_t degrees);

// Questions by right answers: with both caches, only the first, only the second, neither.
struct PairedAnswers {
  double both = 0, first = 0, second = 0, neither = 0;
  [[nodiscard]] double all() const { return both + first + second + neither; }
  [[nodiscard]] double difference() const { return (first - second) / all(); }
};

// 95 % score interval of k of n (Wilson 1927).
std::pair<double, double> wilson_interval(double k, double n);

// 95 % interval of difference(), from score intervals and their correlation (method 10 of Newcombe 1998, Statistics in Medicine 17,
// 2635-2650). Nonzero width even if no or every pair differs.
std::pair<double, double> paired_interval(const PairedAnswers& a);

}  // namespace kvlab
