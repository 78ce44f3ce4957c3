#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "serving/host_setup.h"
#include "serving/link.h"
#include "sim/cost/cost_model.h"
#include "sim/cost_totals.h"
#include "sim/pricing.h"
#include "traces/trace.h"

namespace kvlab {

// Times of the replicas of one pool.
struct SimCosts {
  std::function<std::unique_ptr<CostModel>()> make_cost_model;
  LinkSetup swap_link;
  EncodeCost encode;  // empty: its replicas encode no images
};

// The setup of a simulation.
struct SimSetup : HostSetup, SimCosts {
  std::vector<SimCosts> pool_costs;  // of `pools`

  [[nodiscard]] const SimCosts& costs(std::size_t pool) const { return pools.empty() ? *this : pool_costs[pool]; }
};

// The steps of the devices of one pool.
struct PoolCosts {
  double peak_s = 0;  // PeakTime of its ranks
  double mfu_frac = 0, mbu_frac = 0;
  StepShares step_shares{};
};

// Totals of a simulation, over all replicas.
struct RunSummary : ServingSummary {
  // Shares of the devices' step time, as in summary.csv: linear (experts included), attention, head, collective, policy; and inside tables,
  // between their points, neither.
  std::array<double, 5> part_frac{};
  std::array<double, 3> footing_frac{};
  StepShares step_shares{};
  double mfu_frac = 0, mbu_frac = 0;  // over busy time
  double peak_s = 0;                  // PeakTime of all ranks
  std::vector<PoolCosts> pool_costs;  // as `pools`
};

// Runs a trace to its end (or its stop rule) and delivers records to the sink. Deterministic: same setup, trace and build,
// same result, byte for byte, with fast-forward on or off. Throws InputError where the setup cannot run the trace.
RunSummary simulate(const SimSetup& setup, TraceSource& trace, RunSink& sink);

}  // namespace kvlab
