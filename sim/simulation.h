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

// One pool's replicas.
struct SimCosts {
  std::function<std::unique_ptr<CostModel>()> make_cost_model;
  LinkSetup swap_link;
  EncodeCost encode;  // empty: no images
};

struct SimSetup : HostSetup, SimCosts {
  std::vector<SimCosts> pool_costs;  // of `pools`

  [[nodiscard]] const SimCosts& costs(std::size_t pool) const { return pools.empty() ? *this : pool_costs[pool]; }
};

// One pool's devices.
struct PoolCosts {
  double peak_s = 0;  // PeakTime of ranks
  double mfu_frac = 0, mbu_frac = 0;
  StepShares step_shares{};
};

// Over all replicas.
struct RunSummary : ServingSummary {
  // Shares of step time, as in summary.csv: linear (experts included), attention, head, collective, policy; inside tables, between their
  // points, neither.
  std::array<double, 5> part_frac{};
  std::array<double, 3> footing_frac{};
  StepShares step_shares{};
  double mfu_frac = 0, mbu_frac = 0;  // over busy time
  double peak_s = 0;                  // PeakTime of all ranks
  std::vector<PoolCosts> pool_costs;  // as `pools`
};

// Runs to the trace's end or stop rule. Deterministic byte for byte, with fast-forward on or off. Throws InputError if the setup cannot run
// the trace.
RunSummary simulate(const SimSetup& setup, TraceSource& trace, RunSink& sink);

}  // namespace kvlab
