#pragma once

#include <cmath>
#include <compare>
#include <concepts>
#include <cstdint>

#include "base/time.h"

namespace kvlab {

// Times and durations of the cost model and device clocks. No implicit conversion. Range: 2^63 ps = 106 days.
class Picoseconds {
 public:
  constexpr Picoseconds() = default;
  template <std::signed_integral Int>
  constexpr explicit Picoseconds(Int count) : count_(count) {}
  [[nodiscard]] static constexpr Picoseconds max() { return Picoseconds(INT64_MAX); }

  [[nodiscard]] constexpr std::int64_t count() const { return count_; }
  [[nodiscard]] constexpr double real() const { return static_cast<double>(count_); }  // for prices before rounding

  friend constexpr auto operator<=>(Picoseconds, Picoseconds) = default;
  constexpr Picoseconds& operator+=(Picoseconds other) {
    count_ += other.count_;
    return *this;
  }
  constexpr Picoseconds& operator-=(Picoseconds other) {
    count_ -= other.count_;
    return *this;
  }
  friend constexpr Picoseconds operator+(Picoseconds a, Picoseconds b) { return Picoseconds(a.count_ + b.count_); }
  friend constexpr Picoseconds operator-(Picoseconds a, Picoseconds b) { return Picoseconds(a.count_ - b.count_); }
  template <std::signed_integral Int>
  friend constexpr Picoseconds operator*(Picoseconds a, Int times) {
    return Picoseconds(a.count_ * times);
  }
  template <std::signed_integral Int>
  friend constexpr Picoseconds operator*(Int times, Picoseconds a) {
    return Picoseconds(times * a.count_);
  }
  template <std::signed_integral Int>
  friend constexpr Picoseconds operator/(Picoseconds a, Int parts) {
    return Picoseconds(a.count_ / parts);
  }

 private:
  std::int64_t count_ = 0;
};

inline constexpr std::int64_t kPsPerNs = 1000;

// Exact, unchecked (checked: checked_time.h).
constexpr Picoseconds to_ps(Span s) { return Picoseconds(ns(s) * kPsPerNs); }
// Rounds towards zero.
constexpr Span to_span(Picoseconds ps) { return Span(ps.count() / kPsPerNs); }
constexpr Time to_time(Picoseconds at) { return kStart + to_span(at); }
constexpr std::int64_t ns(Picoseconds ps) { return ns(to_span(ps)); }
constexpr double to_s(Picoseconds ps) { return ps.real() * 1e-12; }

// Rounds to nearest, unchecked.
inline Picoseconds round_ps(double ps) { return Picoseconds(std::llround(ps)); }
inline Picoseconds ps_of_ns(double nanoseconds) { return round_ps(nanoseconds * static_cast<double>(kPsPerNs)); }
inline Picoseconds ps_of_s(double seconds) { return round_ps(seconds * 1e12); }

}  // namespace kvlab
