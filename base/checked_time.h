#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/picoseconds.h"

namespace kvlab {

// A time beyond 64 bits of picoseconds.
class ClockOverflow : public InputError {
 public:
  using InputError::InputError;
};

[[noreturn]] inline void fail_clock(const char* what) { throw ClockOverflow(what); }

inline bool add_overflows(Picoseconds a, Picoseconds b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a.count(), b.count(), &sum);
}

// `what` names the sum in the error.
inline Picoseconds add_time(Picoseconds a, Picoseconds b, const char* what) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a.count(), b.count(), &sum)) [[unlikely]]
    fail_clock(what);
  return Picoseconds(sum);
}
inline Picoseconds multiply_time(Picoseconds a, std::int64_t times, const char* what) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a.count(), times, &product)) [[unlikely]]
    fail_clock(what);
  return Picoseconds(product);
}
inline Picoseconds checked_ps(Time at, const char* what) { return multiply_time(to_ps(Span(1)), ns(at), what); }

// Also throws for NaN.
inline Picoseconds round_time(double ps, const char* what) {
  constexpr double kLimit = 9.2e18;
  if (!(std::abs(ps) < kLimit)) [[unlikely]]
    fail_clock(what);
  return round_ps(ps);
}

}  // namespace kvlab
