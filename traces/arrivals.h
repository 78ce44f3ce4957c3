#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/params.h"
#include "base/time.h"

namespace kvlab {

// When requests, or the first requests of sessions, come. Asked once for each, in order.
class ArrivalProcess {
 public:
  virtual ~ArrivalProcess() = default;
  // `recorded` are the trace's arrivals, for processes that start from it.
  virtual Time next(Time recorded) = 0;
  // Closed loop: sessions in progress at once, else 0; and the pause before session i comes in place of one that ended.
  [[nodiscard]] virtual std::int32_t concurrency() const { return 0; }
  [[nodiscard]] virtual Span think_time(std::uint64_t /*session_index*/) const { return Span{0}; }
  [[nodiscard]] virtual Span ramp() const { return Span{0}; }
  [[nodiscard]] virtual Span idle_cap() const { return Span{0}; }
};

// Names of `arrival:`:
//   poisson      rate_per_s: exponential gaps
//   gamma        rate_per_s, cv: coefficient of variation of the gaps (1: Poisson, above: bursts)
//   weibull      rate_per_s, shape (1: Poisson, below: bursts)
//   constant     rate_per_s: request i comes at i / rate
//   on_off       on_rate_per_s, off_rate_per_s, on_s, off_s, phases (exponential or constant): Poisson at two rates in turn
//   trace        scale: as recorded, with the rate multiplied
//   closed_loop  concurrency, think_time, ramp_s, idle_cap_s
// Random gaps come before each request, the first one too. Refuses a process that runs past 106 days.
std::unique_ptr<ArrivalProcess> make_arrivals(const std::string& name, Params& p, std::uint64_t seed);

const std::vector<std::string>& arrival_names();

}  // namespace kvlab
