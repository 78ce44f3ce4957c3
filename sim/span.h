#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "sim/totals.h"

namespace kvlab {

// A stretch of uniform decode steps that were priced and not yet carried out. Iteration i (from 1) processes the oldest
// output in flight and plans one more step, whose device time is base + (i - 1) * slope.
struct DecodeStretch {
  std::int64_t iterations = 0;  // 0: none
  StepCost base, slope;
  Picoseconds gap = 0;  // host time between device steps, at depth 1
  bool waits = false;   // requests wait while it runs

  // Device time (and gaps) of its first n steps.
  [[nodiscard]] Picoseconds steps_time(std::int64_t n) const {
    return static_cast<Picoseconds>(progression_sum(base.total, slope.total, n)) + gap * n;
  }

  // Largest n <= most with steps_time(n) < limit (<= limit if inclusive).
  [[nodiscard]] std::int64_t steps_within(Picoseconds limit, std::int64_t most, bool inclusive) const {
    const auto fits = [&](std::int64_t n) { return inclusive ? steps_time(n) <= limit : steps_time(n) < limit; };
    if (most <= 0 || !fits(0)) return 0;
    if (fits(most)) return most;
    // slope n^2 / 2 + first n = limit, then the exact neighbour
    const double half = static_cast<double>(slope.total) / 2;
    const double first = static_cast<double>(base.total + gap) - half;
    const auto bound = static_cast<double>(limit);
    const double root = std::sqrt(std::max(0.0, first * first + 4 * half * bound));
    std::int64_t n = static_cast<std::int64_t>(2 * bound / (first + root));
    n = std::clamp<std::int64_t>(n, 0, most);
    while (n > 0 && !fits(n)) --n;
    while (n < most && fits(n + 1)) ++n;
    return n;
  }

  // What is left of it once its first n iterations were carried out.
  void drop(std::int64_t n) {
    iterations -= n;
    base.total += n * slope.total;
    base.flops += n * slope.flops;
    base.bytes += n * slope.bytes;
    for (std::size_t i = 0; i < kCostParts; ++i) base.part[i] += n * slope.part[i];
    for (std::size_t i = 0; i < kFootings; ++i) base.footing[i] += n * slope.footing[i];
  }
};

}  // namespace kvlab
