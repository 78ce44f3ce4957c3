#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/runs/accuracy/served_model.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/pool_plan.h"
#include "app/runs/plan/trace_input.h"
#include "app/runs/sweep/search.h"
#include "base/config/params.h"
#include "serving/encoders.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/vision_encoder.h"

namespace kvlab {

struct ImagePlan {
  std::int32_t tokens_each = 0;
  VisionEncoder encoder;
};

// Nullopt if `images` is absent. Throws InputError.
std::optional<ImagePlan> read_images(Params& p);

// Each replica is one GPU.
struct EncodePoolPlan : EncodePoolSetup {
  CostSetup cost;  // only its hardware is used
  std::string link_name;
};

// Reads all keys but role and replicas. first: of a pool with the model. images: null is refused.
EncodePoolPlan read_encode_pool(Params& pool, const std::string& name, const ImagePlan* images, const CostSetup& first);

struct ServingPlan {
  SimSetup setup;
  std::vector<PoolPlan> pools;  // as setup.pools, or a single one
  std::optional<ImagePlan> images;
  std::vector<EncodePoolPlan> encode_pools;  // as setup.images.pools
  std::string system;                        // for keys left out; "": none
  CostSetup cost;                            // first pool
  std::vector<std::string> remarks;          // in the result's note
  TraceInput trace;
  bool has_facts = false;  // results by class and client
  std::optional<SearchPlan> search;
  Comparisons comparisons;
  Recipe recipe;
  bool has_samples = false;  // also replayed
  bool has_load_frac = false;
  double load_frac = 0;  // share of simulated capacity; 0: the trace's rate
  // Only used by the engine.
  ServedModel served;
  double temperature = 0;
  bool stays_awake = true;
};

// Reads all but `trace` (docs/experiments.md). Throws InputError.
ServingPlan read_serving_plan(Params& p, std::uint64_t seed);
// For a plan without pools. Throws InputError with an oracle block cache and several replicas.
void set_replicas(const Params& p, ServingPlan& plan, std::uint32_t replicas);
// With encode pools.
std::int64_t num_gpus(const ServingPlan& plan);
// Reads `trace`. Call last.
void read_requests(Params& p, ServingPlan& plan);

}  // namespace kvlab
