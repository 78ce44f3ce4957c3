#pragma once

#include "app/runs/plan/serving_plan.h"
#include "base/config/params.h"

namespace kvlab {

// Reads `store`: CPU memory of prefill replicas that keeps prompts. Call after read_pools(). Throws InputError if no pool can keep prompts,
// or its blocks are not multiples of the pools'.
void read_store(Params& p, ServingPlan& plan);

}  // namespace kvlab
