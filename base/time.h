#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace kvlab {

// Simulated clock: int64 nanoseconds since the start of a run.
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

inline constexpr double kLongestRunS = 9.2e6;  // 2^63 ps with a margin

// Rounds to nanoseconds; throws InputError for NaN, negative values and over 106 days.
inline Span from_seconds(double seconds) {
  if (!(seconds >= 0 && seconds <= kLongestRunS)) throw InputError("a time of " + std::to_string(seconds) + " s is outside [0, 9.2e6] s");
  return Span(static_cast<std::int64_t>(std::llround(seconds * 1e9)));
}

}  // namespace kvlab
