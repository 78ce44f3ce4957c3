#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/cost/make_cost_model.h"
#include "sim/simulation.h"

namespace kvlab {

// Energy and price of a simulated run, warm-up included. None: not known, or no token came out. A token is one that a request emitted.
struct Bill {
  std::optional<double> energy_j, energy_j_per_token, dollars_per_million_tokens;
  std::string remark;  // which key of the hardware file is missing; "": none
};

// Energy: every GPU draws idle power from the first arrival to the last token, and the rest up to peak power for its time at peak
// (sim/peak_time.h). Price: the hours of every GPU in that time.
Bill bill_of(const RunSummary& summary, const CostSetup& cost, std::uint32_t num_replicas);

}  // namespace kvlab
