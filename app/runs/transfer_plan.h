#pragma once

#include "app/runs/serving_plan.h"
#include "base/params.h"

namespace kvlab {

// Reads `transfer`: how KV goes from pool to pool, and over which link of each pool's cards. After read_pools(). InputError with
// file:line:column: there are no pools, or a card does not have the link.
void read_transfer(Params& p, ServingPlan& plan);

}  // namespace kvlab
