#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked_time.h"

namespace kvlab {

// One direction of a link between GPU and CPU memory.
struct LinkSetup {
  double bytes_per_s = 25e9;
  Span call_time{10'000};
};

// A FIFO server: transfers go one after another, each taking calls * call_time + bytes / bandwidth.
class Link {
 public:
  explicit Link(const LinkSetup& setup) : bytes_per_s_(setup.bytes_per_s), call_time_(to_ps(setup.call_time)) {}

  // When a transfer asked for at `at` ends.
  Picoseconds transfer(Picoseconds at, std::int64_t bytes, std::int64_t calls) {
    constexpr const char* kLong = "copies to CPU memory end later than that (memory.swap_bytes_per_s, memory.swap_call_us)";
    const Picoseconds wire = round_time(static_cast<double>(bytes) / bytes_per_s_ * 1e12, kLong);
    const Picoseconds time = add_time(multiply_time(call_time_, calls, kLong), wire, kLong);
    free_at_ = add_time(std::max(free_at_, at), time, kLong);
    busy_ += time;
    return free_at_;
  }
  [[nodiscard]] Picoseconds busy() const { return busy_; }

 private:
  double bytes_per_s_;
  Picoseconds call_time_;
  Picoseconds free_at_, busy_;
};

}  // namespace kvlab
