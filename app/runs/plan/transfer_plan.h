#pragma once

#include "app/runs/plan/serving_plan.h"
#include "base/config/params.h"

namespace kvlab {

// Reads `transfer`. Call after read_pools(). Throws InputError without pools, or if a card lacks the link.
void read_transfer(Params& p, ServingPlan& plan);

}  // namespace kvlab
