#pragma once

#include <cstdint>

#include "app/runs/serving_plan.h"
#include "app/runs/serving_system.h"
#include "base/params.h"

namespace kvlab {

// Reads `pools`, or the keys of the only pool where there are none, into plan.pools and plan.setup. A pool takes keys that it lacks from
// `own`, the experiment without its system, then from the system. p: the experiment, which falls back on the system. After the dispatcher.
// InputError with file:line:column: no pool takes a stage; pools whose blocks differ; keys that are of the whole experiment; a scheduler or
// a block cache that cannot do what its pool is for.
void read_pools(Params& p, Params& own, const ServingSystem& system, ServingPlan& plan);

// The experiment has pools, its own or those of its system.
bool has_pools(const Params& p, const ServingSystem& system);

// Replicas of all pools, and their ranks.
std::uint64_t num_replicas(const HostSetup& setup);
std::uint64_t num_ranks(const HostSetup& setup);

}  // namespace kvlab
