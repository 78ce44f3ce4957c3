#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked_time.h"

namespace kvlab {

// One direction.
struct LinkSetup {
  double bytes_per_s = 25e9;
  Span call_time{10'000};
};

// calls * call_time + bytes / bandwidth. cause: keys to check on overflow of the clock.
inline Picoseconds transfer_time(const LinkSetup& link, std::int64_t bytes, std::int64_t calls, const char* cause) {
  const Picoseconds wire = round_time(static_cast<double>(bytes) / link.bytes_per_s * 1e12, cause);
  return add_time(multiply_time(to_ps(link.call_time), calls, cause), wire, cause);
}

// A FIFO server between GPU and CPU memory.
class Link {
 public:
  explicit Link(const LinkSetup& setup) : setup_(setup) {}

  // The end of a transfer requested at `at`.
  Picoseconds transfer(Picoseconds at, std::int64_t bytes, std::int64_t calls) {
    const Picoseconds time = transfer_time(setup_, bytes, calls, kLong);
    free_at_ = add_time(std::max(free_at_, at), time, kLong);
    busy_ += time;
    return free_at_;
  }
  // The end of such a transfer, without starting it.
  [[nodiscard]] Picoseconds end_of(Picoseconds at, std::int64_t bytes, std::int64_t calls) const {
    return add_time(std::max(free_at_, at), transfer_time(setup_, bytes, calls, kLong), kLong);
  }
  [[nodiscard]] Picoseconds busy() const { return busy_; }

 private:
  static constexpr const char* kLong = "copies to CPU memory end later than that (memory.swap_bytes_per_s, memory.swap_call_us)";
  LinkSetup setup_;
  Picoseconds free_at_, busy_;
};

}  // namespace kvlab
