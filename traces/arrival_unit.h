#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/time.h"

namespace kvlab {

// Detects arrivals in another unit than the format's.
class ArrivalUnit {
 public:
  // The format's; 0: certain (dates, or named by the column).
  explicit ArrivalUnit(std::int64_t unit_ns) : unit_ns_(unit_ns) {}

  void add(Time arrival) {
    first_ = std::min(first_, arrival);
    last_ = std::max(last_, arrival);
    ++count_;
    has_fraction_ = has_fraction_ || (unit_ns_ > 0 && ns(arrival) % unit_ns_ != 0);
  }
  // "" if plausible. is_whole: the span counts too.
  [[nodiscard]] std::string remark(std::string_view column, bool is_whole) const;

 private:
  [[nodiscard]] bool in_ms() const { return unit_ns_ == 1'000'000; }
  [[nodiscard]] bool is_too_slow(double rate_per_s) const;
  [[nodiscard]] bool is_too_fast(double span_s, double rate_per_s, bool is_whole) const;

  std::int64_t unit_ns_;
  Time first_ = Time::max(), last_ = Time::min();
  std::uint64_t count_ = 0;
  bool has_fraction_ = false;
};

}  // namespace kvlab
