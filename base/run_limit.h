#pragma once

#include "base/error.h"
#include "base/time.h"

namespace kvlab {

inline constexpr double kLongestRunSeconds = 9.2e6;  // 2^63 ps with a margin

// Throws InputError beyond the longest run (base/picoseconds.h).
inline void check_within_run(double at_s) {
  if (at_s <= kLongestRunSeconds) return;
  throw InputError(
      "the trace runs past 106 days (9.2e6 s), the longest run there is: ask for fewer requests or a higher rate_per_s, take a part of a "
      "file with offset and limit_requests, speed it up with arrival: {trace: {scale: ...}}, or end the run with stop: {after_s: ...}");
}

}  // namespace kvlab
