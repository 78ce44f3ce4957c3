#pragma once

#include <string>

#include "app/runs/plan/pool_plan.h"
#include "sim/cost/kv_layout.h"

namespace kvlab {

// For a pool.recipe that does not keep everything: footprint and block size. Throws InputError at `kv_policy`.
void use_recipe(Params& p, const KvLayout& layout, PoolPlan& pool);

// Throws InputError without `kv_policy`, naming `purpose` ("grade").
Recipe read_named_recipe(Params& p, const std::string& purpose);
// Throws InputError if the engine cannot run the recipe.
void require_engine(const Params& p, const Recipe& recipe);

}  // namespace kvlab
