#pragma once

#include "app/runs/plan/serving_plan.h"
#include "base/config/params.h"

namespace kvlab {

// Reads `transfer`: how KV moves between pools and over which links. Call after read_pools(). Throws InputError with file:line:column
// without pools, or if a card lacks the link.
void read_transfer(Params& p, ServingPlan& plan);

}  // namespace kvlab
