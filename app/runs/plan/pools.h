#pragma once

#include <cstdint>

#include "app/runs/plan/serving_plan.h"
#include "app/runs/plan/serving_system.h"
#include "base/config/params.h"

namespace kvlab {

// Reads `pools`, else the single pool. Pools inherit from `own`, the experiment without its system, then from the system. p: both. Call
// after reading the dispatcher. Throws InputError.
void read_pools(Params& p, Params& own, const ServingSystem& system, ServingPlan& plan);

// Given, or the system's.
bool has_pools(const Params& p, const ServingSystem& system);

std::uint64_t num_replicas(const HostSetup& setup);
std::uint64_t num_ranks(const HostSetup& setup);

}  // namespace kvlab
