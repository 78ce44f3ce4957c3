#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/runs/accuracy.h"
#include "app/runs/served_model.h"
#include "base/params.h"
#include "policies/kv/recipe.h"
#include "sim/cost/make_cost_model.h"
#include "sim/simulation.h"

namespace kvlab {

// Goodput search: the highest arrival rate in [low, high] at which `attainment` of the requests meet the SLO.
struct SearchPlan {
  double low_per_s = 0, high_per_s = 0;
  double attainment = 0.9;
  double tolerance_frac = 0.02;  // the search ends when the bracket is this narrow, relative to its upper end
};

enum class RunKind : std::uint8_t { kSimulation, kBlockCacheMrc, kReplay, kAccuracy, kServing };

// One run of an experiment, read and checked: nothing is left that the user could have got wrong except inside the trace.
struct RunPlan {
  RunKind kind = RunKind::kSimulation;
  SimSetup setup;
  CostSetup cost;
  std::vector<std::string> remarks;                          // on inputs that are accepted and look odd; the result's note
  std::string lint;                                          // command that prints the remarks on the profile
  std::function<std::unique_ptr<TraceSource>()> open_trace;  // each call reads it from its start
  std::optional<SearchPlan> search;
  bool wants_perfetto = false;
  std::string validate_requests;  // a real engine's log to compare the results with, or ""
  std::int32_t block_tokens = 16;
  std::optional<Recipe> recipe;  // of its KV policy
  std::optional<AccuracySetup> accuracy;
  bool has_samples = false;  // a simulation that replays its KV policy too
  // 'host: engine' with a trace: the model, what it runs on, and how its tokens are drawn.
  ServedModel served;
  double temperature = 0;
  bool stays_awake = true;
  double max_diff_frac = 0;  // that simulation and engine may differ by in a median over the seeds; 0: any
  bool has_load_frac = false;
  double load_frac = 0;  // arrival rate as a share of the capacity that a simulation finds; 0: as the trace says
};

// Reads the top level of an experiment (docs/experiments.md lists its keys) and refuses what it does not know. Every policy,
// the cost model and the trace are made once, so that their errors appear here. InputError with file:line:column.
RunPlan read_run_plan(Params& p, std::uint64_t seed);

// The source of step times, for the label and the manifest: profile, its date and hash.
std::string describe_cost_source(const RunPlan& plan);
// A remark where the datasheet alone prices collectives that take more than a tenth of step time, with what to add; else "".
std::string remark_on_collectives(const CostSetup& cost, const RunSummary& summary);
// The goals that the profile's calibration missed; "": none, or it was not measured by kvlab.
std::string calibration_failure_of(const RunPlan& plan);

}  // namespace kvlab
