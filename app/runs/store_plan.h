#pragma once

#include "app/runs/serving_plan.h"
#include "base/params.h"

namespace kvlab {

// Reads `store`: how much CPU memory of replicas that prefill keeps prompts. After read_pools(). InputError with file:line:column: there
// are no pools, none of them can keep prompts, or blocks of the store are no whole blocks of the pools.
void read_store(Params& p, ServingPlan& plan);

}  // namespace kvlab
