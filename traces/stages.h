#pragma once

#include <cstdint>
#include <memory>

#include "base/config/params.h"
#include "traces/arrivals.h"

namespace kvlab {

// Arrivals at planned rates.

// `stages`, in sequence: {NAME: {rate_per_s, to_rate_per_s, gaps, burst, every_s, for_s, pause_s}}; NAME is the request class.
std::unique_ptr<ArrivalProcess> make_stages(Params& p, std::uint64_t seed);
// `ramp`: from_per_s, to_per_s, over_s, gaps: a linear rate, then constant.
std::unique_ptr<ArrivalProcess> make_ramp(Params& p, std::uint64_t seed);
// `bursts`: requests, every_s.
std::unique_ptr<ArrivalProcess> make_bursts(Params& p);

}  // namespace kvlab
