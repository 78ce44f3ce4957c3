#pragma once

#include <utility>

namespace kvlab {

// Numbers of questions that two caches answered: right with both, only with the first, only with the second, with neither.
struct PairedAnswers {
  double both = 0, first = 0, second = 0, neither = 0;
  [[nodiscard]] double all() const { return both + first + second + neither; }
  [[nodiscard]] double difference() const { return (first - second) / all(); }
};

// The score interval of a share k of n at 95 % (Wilson 1927).
std::pair<double, double> wilson_interval(double k, double n);

// The interval at 95 % of the first's share of right answers minus the second's: from both shares' score intervals and their correlation
// (method 10 of Newcombe 1998, Improved confidence intervals for the difference between binomial proportions based on paired data,
// Statistics in Medicine 17, 2635-2650). It has a width where no pair, or every pair, differs.
std::pair<double, double> paired_interval(const PairedAnswers& a);

}  // namespace kvlab
