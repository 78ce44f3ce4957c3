#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/runs/run_kind.h"
#include "app/runs/search.h"
#include "app/runs/served_model.h"
#include "app/runs/trace_input.h"
#include "base/params.h"
#include "policies/kv/recipe.h"
#include "sim/cost/make_cost_model.h"
#include "sim/simulation.h"

namespace kvlab {

// The settings of a run that serves a request trace, in a simulation or by the engine.
struct ServingPlan {
  SimSetup setup;
  CostSetup cost;
  std::vector<std::string> remarks;  // on inputs that are accepted and look odd; the result's note
  std::string lint;                  // command that prints the remarks on the profile
  TraceInput trace;
  bool has_facts = false;  // the trace has optional columns: results are split by class and client
  std::optional<SearchPlan> search;
  Comparisons comparisons;
  Recipe recipe;             // of its KV policy
  bool is_hybrid = true;     // layers of several kinds keep as many tokens as their kind does
  bool has_samples = false;  // the KV policy is replayed, too
  bool has_load_frac = false;
  double load_frac = 0;  // arrival rate as a share of the capacity that a simulation finds; 0: as the trace says
  // Read by every run, and used by the engine: the model, what it runs on, and how its tokens are drawn.
  ServedModel served;
  double temperature = 0;
  bool stays_awake = true;
};

// The order or the scheduler asks for output lengths.
bool uses_predictor(const HostSetup& setup);
// Reads all but `trace` (docs/experiments.md lists the keys). Every policy and the cost model are made once, so that their errors appear
// here. InputError with file:line:column.
ServingPlan read_serving_plan(Params& p, std::uint64_t seed);
// Reads `trace`, after the rest.
void read_requests(Params& p, ServingPlan& plan);

// The source of step times, for the label and the manifest: profile, its date and hash.
std::string describe_cost_source(const ServingPlan& plan);
// A remark where the datasheet alone prices collectives that take more than a tenth of step time, with what to add; else "".
std::string remark_on_collectives(const CostSetup& cost, const RunSummary& summary);
// A remark where the roofline prices more than a tenth of step time with tp > 1; else "".
std::string remark_on_roofline(const CostSetup& cost, const RunSummary& summary);
// The goals that the profile's calibration missed; "": none, or it was not measured by kvlab.
std::string calibration_failure_of(const ServingPlan& plan);

}  // namespace kvlab
