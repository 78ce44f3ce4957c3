#pragma once

#include <cstdint>

#include "base/int128.h"
#include "base/picoseconds.h"
#include "serving/step.h"

namespace kvlab {

// Sums over the steps of one replica, in integers: exact also for fast-forwarded stretches. An empty step of an idle rank only adds its
// time.
struct StepTotals {
  std::uint64_t steps = 0;
  Int128 rows = 0, tokens = 0;                // by step
  Int128 busy = 0, overload = 0;              // ps with a step in flight; overload: and requests waiting
  Int128 used_blocks = 0, wasted_tokens = 0;  // times ps
  Int128 external_fragmentation = 0;          // ppm times ps
  std::int64_t peak_used_blocks = 0;
  std::int64_t images = 0;

  // occupied: the part of the step's time without an earlier step in flight.
  void add(const InFlightStep& step, Picoseconds occupied);
  void merge(const StepTotals& other);
};

// 0 if the whole is not positive.
constexpr double ratio(Int128 part, Int128 whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0; }

// 1 + 2 + ... + (n - 1)
constexpr Int128 triangle(std::int64_t n) { return static_cast<Int128>(n) * (n - 1) / 2; }

// first + (first + step) + ... , n terms
constexpr Int128 progression_sum(std::int64_t first, std::int64_t step, std::int64_t n) {
  return static_cast<Int128>(first) * n + static_cast<Int128>(step) * triangle(n);
}
constexpr Int128 progression_sum(Picoseconds first, Picoseconds step, std::int64_t n) {
  return progression_sum(first.count(), step.count(), n);
}

// Sum over i = 1..n of i * (first + step * (i - 1))
constexpr Int128 progression_moment(std::int64_t first, std::int64_t step, std::int64_t n) {
  const Int128 m = n;
  return static_cast<Int128>(first) * (m * (m + 1) / 2) + static_cast<Int128>(step) * ((m * m * m - m) / 3);
}
constexpr Int128 progression_moment(Picoseconds first, Picoseconds step, std::int64_t n) {
  return progression_moment(first.count(), step.count(), n);
}

}  // namespace kvlab
