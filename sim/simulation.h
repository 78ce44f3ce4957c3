#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policies/router/router.h"
#include "serving/host_setup.h"
#include "sim/cost/cost_model.h"
#include "traces/trace.h"

namespace kvlab {

// One direction of a link: a FIFO server. xfer(bytes, calls) = calls * call_time + bytes / bandwidth.
struct LinkSetup {
  double bytes_per_s = 25e9;
  Span call_time{10'000};
};

// What a simulation consists of.
struct SimSetup : HostSetup {
  std::uint32_t num_replicas = 1;
  std::function<std::unique_ptr<Router>()> make_router;
  std::function<std::unique_ptr<CostModel>()> make_cost_model;
  LinkSetup swap_link;
  bool fast_forward = true;
  std::vector<std::uint64_t> future_keys;                // for oracle block caches, one replica: the lookups of an earlier pass
  std::vector<std::uint64_t>* record_lookups = nullptr;  // where to note block lookups in order, for such a pass
};

// Totals of a simulation, over all replicas.
struct RunSummary : ServingSummary {
  std::uint64_t events = 0;
  std::array<double, kCostParts> part_frac{};    // of step time
  std::array<double, kFootings> footing_frac{};  // of step time
  double mfu_frac = 0, mbu_frac = 0;             // over busy time
};

// Runs a trace to its end (or its stop rule) and delivers records to the sink. Deterministic: same setup, trace and build,
// same result, byte for byte, with fast-forward on or off. Throws InputError where the setup cannot run the trace.
RunSummary simulate(const SimSetup& setup, TraceSource& trace, RunSink& sink);

}  // namespace kvlab
