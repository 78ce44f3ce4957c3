#pragma once

#include <array>
#include <functional>
#include <memory>

#include "serving/host_setup.h"
#include "sim/cost/cost_model.h"
#include "sim/cost_totals.h"
#include "sim/link.h"
#include "traces/trace.h"

namespace kvlab {

// The setup of a simulation.
struct SimSetup : HostSetup {
  std::function<std::unique_ptr<CostModel>()> make_cost_model;
  LinkSetup swap_link;
};

// Totals of a simulation, over all replicas.
struct RunSummary : ServingSummary {
  // Of the devices' step time, as in summary.csv: linear (experts included), attention, head, collective, policy; and inside tables,
  // between their points, neither.
  std::array<double, 5> part_frac{};
  std::array<double, 3> footing_frac{};
  StepShares step_shares{};
  double mfu_frac = 0, mbu_frac = 0;  // over busy time
  double peak_s = 0;                  // PeakTime of all ranks
};

// Runs a trace to its end (or its stop rule) and delivers records to the sink. Deterministic: same setup, trace and build,
// same result, byte for byte, with fast-forward on or off. Throws InputError where the setup cannot run the trace.
RunSummary simulate(const SimSetup& setup, TraceSource& trace, RunSink& sink);

}  // namespace kvlab
