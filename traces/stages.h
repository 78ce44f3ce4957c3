#pragma once

#include <cstdint>
#include <memory>

#include "base/config/params.h"
#include "traces/arrivals.h"

namespace kvlab {

// In sequence: {NAME: {rate_per_s, to_rate_per_s, gaps, burst, every_s, for_s, pause_s}}; NAME is the request class.
std::unique_ptr<ArrivalProcess> make_stages(Params& p, std::uint64_t seed);
// from_per_s, to_per_s, over_s, gaps: linear, then constant.
std::unique_ptr<ArrivalProcess> make_ramp(Params& p, std::uint64_t seed);
// Reads requests and every_s.
std::unique_ptr<ArrivalProcess> make_bursts(Params& p);

}  // namespace kvlab
