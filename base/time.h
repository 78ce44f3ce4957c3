#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace kvlab {

// The simulated clock: int64 nanoseconds since the start of a run. Adding two points in time does not compile.
struct SimClock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = std::chrono::duration<rep, period>;
  using time_point = std::chrono::time_point<SimClock>;
  static constexpr bool is_steady = true;
};
using Span = SimClock::duration;
using Time = SimClock::time_point;

inline constexpr Time kStart{};
inline constexpr Time kNever = Time::max();

constexpr std::int64_t ns(Span s) { return s.count(); }
constexpr std::int64_t ns(Time t) { return t.time_since_epoch().count(); }
constexpr double to_ms(Span s) { return static_cast<double>(s.count()) * 1e-6; }
constexpr double to_s(Span s) { return static_cast<double>(s.count()) * 1e-9; }
constexpr double to_s(Time t) { return to_s(t.time_since_epoch()); }

// The one place where measured or configured seconds become simulated time: rounds to the nearest nanosecond,
// refuses NaN, infinity, negative values and more than 106 days.
inline Span from_seconds(double seconds) {
  constexpr double kLimit = 9.2e6;
  if (!(seconds >= 0 && seconds <= kLimit)) throw InputError("a time of " + std::to_string(seconds) + " s is outside [0, 9.2e6] s");
  return Span(static_cast<std::int64_t>(std::llround(seconds * 1e9)));
}

}  // namespace kvlab
