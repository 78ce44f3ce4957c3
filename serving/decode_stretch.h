#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/picoseconds.h"
#include "serving/totals.h"

namespace kvlab {

// Uniform decode steps that are priced but not carried out. Iteration i (from 1) processes the oldest output in flight and plans a step
// with device time base + (i - 1) * slope.
struct DecodeStretch {
  std::int64_t iterations = 0;  // 0: none
  Picoseconds base{}, slope{};
  Picoseconds gap{};                          // host time between device steps, at depth 1
  bool waits = false;                         // requests wait during it
  Picoseconds policy{};                       // the KV policy's part of a step's device time
  std::vector<Picoseconds> each = {};         // if not empty: replaces base and slope,
  std::vector<Picoseconds> each_policy = {};  // and policy

  // n from 0.
  [[nodiscard]] Picoseconds step_time(std::int64_t n) const { return each.empty() ? base + slope * n : each[static_cast<std::size_t>(n)]; }
  // For the first n steps.
  [[nodiscard]] Int128 device_time(std::int64_t n) const {
    if (each.empty()) return progression_sum(base, slope, n);
    Int128 sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += step_time(i).count();
    return sum;
  }
  // The KV policy's part of step n (from 0), and of the first n steps.
  [[nodiscard]] Picoseconds policy_time(std::int64_t n) const {
    return each_policy.empty() ? policy : each_policy[static_cast<std::size_t>(n)];
  }
  [[nodiscard]] Picoseconds policy_times(std::int64_t n) const {
    return each_policy.empty() ? policy * n : std::accumulate(each_policy.begin(), each_policy.begin() + n, Picoseconds{});
  }
  [[nodiscard]] Picoseconds steps_time(std::int64_t n) const {  // with gaps
    return Picoseconds(static_cast<std::int64_t>(device_time(n))) + gap * n;
  }

  // The largest n <= most with steps_time(n) < limit (<= limit if inclusive).
  [[nodiscard]] std::int64_t steps_within(Picoseconds limit, std::int64_t most, bool inclusive) const {
    const auto fits = [&](std::int64_t n) { return inclusive ? steps_time(n) <= limit : steps_time(n) < limit; };
    if (most <= 0 || !fits(0)) return 0;
    if (fits(most)) return most;
    if (!each.empty()) {
      std::int64_t n = 0;
      while (fits(n + 1)) ++n;
      return n;
    }
    // Root of slope n^2 / 2 + first n = limit, then its exact neighbour.
    const double half = slope.real() / 2;
    const double first = (base + gap).real() - half;
    const double bound = limit.real();
    const double root = std::sqrt(std::max(0.0, first * first + 4 * half * bound));
    std::int64_t n = static_cast<std::int64_t>(2 * bound / (first + root));
    n = std::clamp<std::int64_t>(n, 0, most);
    while (n > 0 && !fits(n)) --n;
    while (n < most && fits(n + 1)) ++n;
    return n;
  }

  // The first n iterations were carried out.
  void drop(std::int64_t n) {
    iterations -= n;
    base += n * slope;
    if (!each.empty()) each.erase(each.begin(), each.begin() + n);
    if (!each_policy.empty()) each_policy.erase(each_policy.begin(), each_policy.begin() + n);
  }
};

}  // namespace kvlab
