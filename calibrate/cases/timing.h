#pragma once

#include <cstdint>

#include "calibrate/cases/kernel_case.h"

namespace kvlab {

// Without optimisation: times mean nothing.
bool is_debug_build();

struct TimingPlan {
  double seconds = 0.1;  // without warm-up, for at least min_samples
  std::int64_t min_samples = 5, max_samples = 2000;
  double sample_seconds = 5e-5;  // calls are timed together up to this time: a clock or event costs a microsecond
  // To warm up, once through the copies; at least two.
  double warm_up_seconds = 0;
};

// Per call.
struct Timing {
  double seconds = 0;
  double spread_frac = 0;  // of samples / median
  double mean_frac = 1;    // of samples / median
  std::int64_t samples = 0, calls_per_sample = 1;
  std::int64_t discarded = 0;  // samples at a clock over 5 % below the highest
};

Timing time_case(PreparedCase& prepared, TimedDevice& device, const TimingPlan& plan);

// With large operands: bytes read plus written, FLOP/s of a matrix product; 0 without a kernel.
struct DeviceRates {
  double copy_bytes_per_s = 0, gemm_flops_per_s = 0;
};
// `gemm_format`: f32 on the CPU. `short_run`: smaller operands, for tests.
DeviceRates measure_rates(TimedDevice& device, const std::string& gemm_format, bool short_run = false);

}  // namespace kvlab
