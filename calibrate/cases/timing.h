#pragma once

#include <cstdint>

#include "calibrate/cases/kernel_case.h"

namespace kvlab {

// Built without optimisation: its times are no measurement of anything.
bool is_debug_build();

// How long to measure.
struct TimingPlan {
  double seconds = 0.1;  // of samples, warm-up apart; at least min_samples are taken all the same
  std::int64_t min_samples = 5, max_samples = 2000;
  double sample_seconds = 5e-5;  // calls are timed together until they take so long: a clock or an event costs a microsecond
  // Before that, calls go once through the copies, for so long at most; two are always made. Laying out the copies leaves the cache full of
  // what was just written.
  double warm_up_seconds = 0;
};

// Time of one call: median of the samples, and their spread.
struct Timing {
  double seconds = 0;
  double spread_frac = 0;  // (upper quartile - lower quartile) / median
  double mean_frac = 1;    // mean of the samples / median
  std::int64_t samples = 0, calls_per_sample = 1;
  std::int64_t discarded = 0;  // samples thrown away because the clock was more than 5 % below the highest seen
};

// Runs the case until the plan is met.
Timing time_case(PreparedCase& prepared, TimedDevice& device, const TimingPlan& plan);

// The best rates of this device with large operands: copied bytes per second (read plus written) and FLOP/s of a matrix product; 0 where
// there is no kernel for it.
struct DeviceRates {
  double copy_bytes_per_s = 0, gemm_flops_per_s = 0;
};
// f32 on the CPU. `short_run`: smaller operands, for tests.
DeviceRates measure_rates(TimedDevice& device, const std::string& gemm_format, bool short_run = false);

}  // namespace kvlab
