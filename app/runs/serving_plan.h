#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/runs/image_plan.h"
#include "app/runs/pool_plan.h"
#include "app/runs/run_kind.h"
#include "app/runs/search.h"
#include "app/runs/served_model.h"
#include "app/runs/trace_input.h"
#include "base/params.h"

namespace kvlab {

// The settings of a run that serves a request trace, in a simulation or by the engine.
struct ServingPlan {
  SimSetup setup;
  std::vector<PoolPlan> pools;  // as setup.pools, or the only one
  std::optional<ImagePlan> images;
  std::vector<EncodePoolPlan> encode_pools;  // as setup.images.pools
  std::string system;                        // the serving system that fills in what the experiment leaves out; "": none
  CostSetup cost;                            // of the first pool
  std::vector<std::string> remarks;          // on inputs that are accepted and look odd; the result's note
  TraceInput trace;
  bool has_facts = false;  // the trace has optional columns: results are split by class and client
  std::optional<SearchPlan> search;
  Comparisons comparisons;
  Recipe recipe;             // of its KV policy
  bool has_samples = false;  // the KV policy is replayed, too
  bool has_load_frac = false;
  double load_frac = 0;  // arrival rate as a share of the capacity that a simulation finds; 0: as the trace says
  // Read by every run, and used by the engine: the model, what it runs on, and how its tokens are drawn.
  ServedModel served;
  double temperature = 0;
  bool stays_awake = true;
};

// Reads all but `trace` (docs/experiments.md lists the keys). Every policy and the cost model are made once, so that their errors appear
// here. InputError with file:line:column.
ServingPlan read_serving_plan(Params& p, std::uint64_t seed);
// Sets the replicas of a plan without pools. InputError with an oracle block cache, which has one.
void set_replicas(const Params& p, ServingPlan& plan, std::uint32_t replicas);
// GPUs of all replicas, encode pools included.
std::int64_t num_gpus(const ServingPlan& plan);
// Reads `trace`, after the rest.
void read_requests(Params& p, ServingPlan& plan);

}  // namespace kvlab
