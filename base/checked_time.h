#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/time.h"

namespace kvlab {

// A time that 64 bits of picoseconds do not hold. Fleet adds the simulated time and the likely cause.
class ClockOverflow : public InputError {
 public:
  using InputError::InputError;
};

[[noreturn]] inline void fail_clock(const char* what) { throw ClockOverflow(what); }

// a + b and a * b. `what` names the sum in the error.
inline Picoseconds add_time(Picoseconds a, Picoseconds b, const char* what) {
  Picoseconds sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) [[unlikely]]
    fail_clock(what);
  return sum;
}
inline Picoseconds multiply_time(Picoseconds a, std::int64_t times, const char* what) {
  Picoseconds product = 0;
  if (__builtin_mul_overflow(a, times, &product)) [[unlikely]]
    fail_clock(what);
  return product;
}

// Rounds to a picosecond; refuses NaN too.
inline Picoseconds round_time(double ps, const char* what) {
  constexpr double kLimit = 9.2e18;
  if (!(std::abs(ps) < kLimit)) [[unlikely]]
    fail_clock(what);
  return std::llround(ps);
}

}  // namespace kvlab
